"""The problems of the speed comparison, and what arithmetic they need.

Only the standard library: peers in other environments import this too.
"""

import dataclasses
from typing import NamedTuple


class Product(NamedTuple):
  """count matrix products of `batch` times [rows, inner] x [inner, columns].

  Each is done once forward and twice backward, by its input and its weight.
  """

  name: str
  count: int
  batch: int
  rows: int
  inner: int
  columns: int

  @property
  def gflop(self) -> float:
    """10^9 floating point operations of all, forward and backward."""
    size = self.batch * self.rows * self.inner * self.columns
    return 3 * 2 * self.count * size / 1e9


@dataclasses.dataclass(frozen=True)
class Size:
  """A pre-norm Transformer with one tied table, and its dense batches.

  Attributes:
    width, filter, heads, layers: `layers` is that of each stack.
    vocabulary: entries of the table.
    rows: sentences of a batch.
    length: subwords of every source and of every target.
    loss_chunk: target tokens whose logits fusion_jax holds at a time.
    dropout: after every sublayer and on the embeddings.
    label_smoothing: of the loss.
  """

  width: int
  filter: int
  heads: int
  layers: int
  vocabulary: int
  rows: int
  length: int
  loss_chunk: int = 256
  dropout: float = 0.1
  label_smoothing: float = 0.1

  @property
  def target_tokens(self) -> int:
    """Of one batch; no padding."""
    return self.rows * self.length

  def products(self) -> tuple[Product, ...]:
    """All matrix products of a training step; lookups are none."""
    tokens, layers, width = self.target_tokens, self.layers, self.width
    head, pairs = width // self.heads, self.rows * self.heads
    chunk = min(self.loss_chunk, tokens)
    return (
      Product('projections', 12 * layers, 1, tokens, width, width),
      Product('filter, in', 2 * layers, 1, tokens, width, self.filter),
      Product('filter, out', 2 * layers, 1, tokens, self.filter, width),
      Product('scores', 3 * layers, pairs, self.length, head, self.length),
      Product('values', 3 * layers, pairs, self.length, self.length, head),
      Product('logits', tokens // chunk, 1, chunk, width, self.vocabulary),
    )

  @property
  def gflop(self) -> float:
    """10^9 floating point operations of a step's matrix products."""
    return sum(product.gflop for product in self.products())


SIZES = {
  'small': Size(256, 1024, 4, 3, 8_000, rows=64, length=32),
  'base': Size(512, 2048, 8, 6, 32_000, rows=32, length=32),
  'big': Size(1024, 4096, 16, 6, 32_000, rows=32, length=32, dropout=0.3),
  # Only to see that the scripts run.
  'tiny': Size(64, 128, 2, 2, 500, rows=8, length=16, loss_chunk=64),
}
