"""Mixture of corpora: how often each is seen, and which examples when.

An epoch of a mixture is a fixed list of slots of fixed lengths, as many as
there are examples. A corpus that gets as many slots as it has examples has one
slot for each of them; one that gets more has several whole rounds of them. The
remaining slots are part of a round: the examples, sorted by length, are cut
into that many blocks of neighbours. A block is one slot, as long as its longest
example; the epoch and the seed choose which example it shows, and each example
is shown once before any is repeated. Batches can therefore be planned once for
the slots, and the examples of a step are found without going through the
earlier steps.

Axis letters: N examples, M slots.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float64, Int, Int32

from fusion_jax.config import DataConfig
from fusion_jax.startup import log_table

# Separates the draws of this module from others with the same seed.
_STREAM = 2

_Lengths: TypeAlias = Int32[np.ndarray, 'N 2']
# A number for each corpus.
_Parts: TypeAlias = Float64[np.ndarray, ' corpora']
# Slots of a corpus: its number, the first slot, and in each row one's choices.
_Rounds: TypeAlias = tuple[int, int, Int32[np.ndarray, 'slots size']]


def shares(
  sizes: Sequence[int], weights: Sequence[float], temperature: float
) -> _Parts:
  """Compute the share of each corpus in the training.

  p_k = (n_k w_k)^(1/T) / sum_j (n_j w_j)^(1/T), Arivazhagan et al. (2019),
  section 4.2, https://arxiv.org/abs/1907.05019.
  """
  logarithms = (np.log(sizes) + np.log(weights)) / temperature
  powers = np.exp(logarithms - logarithms.max())
  return powers / powers.sum()


def apportioned(total: int, parts: _Parts) -> Int[np.ndarray, ' corpora']:
  """Divide a total into whole numbers; large remainders go up (Hamilton)."""
  exact = total * parts
  counts = np.floor(exact).astype(np.int64)
  order = np.argsort(counts - exact, kind='stable')
  counts[order[: total - counts.sum()]] += 1
  return counts


class Mixture:
  """Slots of an epoch: the room in each, how many a corpus has, examples."""

  def __init__(
    self, lengths: _Lengths, sizes: Sequence[int], parts: _Parts, seed: int
  ):
    """Lay out the slots: M = N, or more where a corpus would have none."""
    assert sum(sizes) == len(lengths), (sizes, len(lengths))
    self.counts = np.maximum(apportioned(len(lengths), parts), 1)
    self._seed = seed
    self._rounds = list(_laid_out(lengths, sizes, self.counts))
    self.lengths = np.concatenate(
      [lengths[blocks].max(axis=1) for _, _, blocks in self._rounds]
    )
    # Several threads request an epoch batch by batch.
    self._cached = functools.lru_cache(maxsize=2)(self._chosen)

  def examples(
    self, epoch: int, slots: Int32[np.ndarray, ' rows']
  ) -> Int32[np.ndarray, ' rows']:
    """Return the examples that slots show in an epoch. Thread-safe."""
    return self._cached(epoch)[slots]

  def _chosen(self, epoch: int) -> Int32[np.ndarray, ' M']:
    shown = (self._shown(*rounds, epoch) for rounds in self._rounds)
    return np.concatenate(list(shown))

  def _shown(
    self,
    corpus: int,
    first: int,
    blocks: Int32[np.ndarray, 'slots size'],
    epoch: int,
  ) -> Int32[np.ndarray, ' slots']:
    """Choose one example per block, in a new order after each full cycle."""
    if blocks.shape[1] == 1:
      return blocks[:, 0]
    cycle, position = divmod(epoch, blocks.shape[1])
    entropy = np.random.SeedSequence(
      (self._seed, cycle), spawn_key=(_STREAM, corpus, first)
    )
    keys = np.random.Philox(entropy).random_raw(blocks.size)
    order = np.argsort(keys.reshape(blocks.shape), axis=1, kind='stable')
    column = order[:, position : position + 1]
    return np.take_along_axis(blocks, column, axis=1)[:, 0]


def _laid_out(
  lengths: _Lengths, sizes: Sequence[int], counts: Int[np.ndarray, ' corpora']
) -> Iterator[_Rounds]:
  """Yield the whole rounds of each corpus, then the blocks of a part of one."""
  slot = first = 0
  for corpus, (size, count) in enumerate(zip(sizes, counts, strict=True)):
    own = np.arange(first, first + size, dtype=np.int32)
    whole, part = divmod(int(count), size)
    pieces = [own[:, None]] * whole
    if part:
      pieces += _blocks(own[np.lexsort(lengths[own].T)], part)
    for blocks in pieces:
      yield corpus, slot, blocks
      slot += len(blocks)
    first += size


def _blocks(
  ordered: Int32[np.ndarray, ' n'], count: int
) -> list[Int32[np.ndarray, 'slots size']]:
  """Cut examples into `count` runs whose sizes differ by 1 at most."""
  size, larger = divmod(len(ordered), count)
  # The longest examples, whose lengths are far apart, get the smaller runs.
  middle = len(ordered) - (count - larger) * size
  runs = [ordered[middle:].reshape(-1, size)]
  if larger:
    runs.append(ordered[:middle].reshape(-1, size + 1))
  return runs


def training_mixture(
  data: DataConfig, directions: Mapping[str, int], lengths: _Lengths, seed: int
) -> Mixture:
  """Build the mixture that a config asks for."""
  weights = {each.name: each.weight for each in data.all_directions}
  sizes = list(directions.values())
  own = [weights[name] for name in directions]
  parts = shares(sizes, own, data.mixing_temperature)
  return Mixture(lengths, sizes, parts, seed)


def mixture_table(directions: Mapping[str, int], mixture: Mixture) -> str:
  """Format each direction's pairs, share and number of passes as a line."""
  total = mixture.counts.sum()
  rows: list[Sequence[Any]]
  rows = [('direction', 'pairs', 'an epoch', 'share', 'passes')]
  slots = zip(directions.items(), mixture.counts, strict=True)
  for (name, size), count in slots:
    rows.append((name, size, count, count / total, f'{count / size:.2f}'))
  return log_table(rows)
