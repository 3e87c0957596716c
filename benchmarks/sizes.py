"""The problems of the speed comparisons, and what arithmetic they need.

Only the standard library: peers in other environments import this too.
"""

import random
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
    size = self.batch * self.rows * self.inner * self.columns
    return 3 * 2 * self.count * size / 1e9


class Size(NamedTuple):
  """A pre-norm Transformer with one tied table, and its dense batches.

  Each stack has `layers`; all sources and targets have `length` subwords;
  fusion_jax holds the logits of `loss_chunk` target tokens at a time; dropout
  follows every sublayer and the embeddings.
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
    return sum(product.gflop for product in self.products())


SIZES = {
  'small': Size(256, 1024, 4, 3, 8_000, rows=64, length=32),
  'base': Size(512, 2048, 8, 6, 32_000, rows=32, length=32),
  'big': Size(1024, 4096, 16, 6, 32_000, rows=32, length=32, dropout=0.3),
  # Only to see that the scripts run.
  'tiny': Size(64, 128, 2, 2, 500, rows=8, length=16, loss_chunk=64),
}

# Subwords of every source and of every translation, end symbols included.
LENGTH = 32
_SENTENCES, _SINGLE_SENTENCES = 64, 8
# The ids 0 to 3 are special symbols; 2 starts a sentence and 3 ends it.
SPECIAL_SYMBOLS, START, END = 4, 2, 3


class Task(NamedTuple):
  """Sentences to translate in batches of `rows`; beam 1 is greedy search."""

  beam: int = 1
  rows: int = 1
  sentences: int = 1

  @property
  def name(self) -> str:
    search = 'greedy' if self.beam == 1 else f'beam {self.beam}'
    return f'{search}, ' + ('one by one' if self.rows == 1 else 'batch')

  @property
  def output_tokens(self) -> int:
    return self.sentences * LENGTH

  def batches(self, size: Size) -> list[list[list[int]]]:
    """The sources: random ids, the same for every contestant."""
    rng = random.Random(0)
    sentences = [
      [
        *(
          rng.randrange(SPECIAL_SYMBOLS, size.vocabulary)
          for _ in range(LENGTH - 1)
        ),
        END,
      ]
      for _ in range(self.sentences)
    ]
    return [
      sentences[first : first + self.rows]
      for first in range(0, self.sentences, self.rows)
    ]


TASKS = tuple(
  Task(beam, rows, sentences)
  for rows, sentences in ((_SENTENCES, _SENTENCES), (1, _SINGLE_SENTENCES))
  for beam in (1, 4)
)
