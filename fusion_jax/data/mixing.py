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
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int, Int32

from fusion_jax.config import DataConfig
from fusion_jax.startup import log_table

# Separates the draws of this module from others with the same seed.
_STREAM = 2


def shares(
  sizes: Sequence[int], weights: Sequence[float], temperature: float
) -> Float64[np.ndarray, ' corpora']:
  """Compute the share of each corpus in the training.

  p_k = (n_k w_k)^(1/T) / sum_j (n_j w_j)^(1/T), Arivazhagan et al. (2019),
  section 4.2, https://arxiv.org/abs/1907.05019.
  """
  logarithms = (np.log(sizes) + np.log(weights)) / temperature
  powers = np.exp(logarithms - logarithms.max())
  return powers / powers.sum()


def apportioned(
  total: int, parts: Float64[np.ndarray, ' corpora']
) -> Int[np.ndarray, ' corpora']:
  """Divide a total in given proportions into whole numbers.

  Each number is within 1 of its exact share. The largest remainders are
  rounded up (Hamilton's method).
  """
  exact = total * parts
  counts = np.floor(exact).astype(np.int64)
  order = np.argsort(counts - exact, kind='stable')
  counts[order[: total - counts.sum()]] += 1
  return counts


class _Rounds(NamedTuple):
  """Slots of a corpus, from `first` on; a row of blocks has one's choices."""

  corpus: int
  first: int
  blocks: Int32[np.ndarray, 'slots size']


class Mixture:
  """Slots of an epoch and the examples in them.

  `lengths` is the room in each slot, `counts` the slots of each corpus.
  """

  def __init__(
    self,
    lengths: Int32[np.ndarray, 'N 2'],
    sizes: Sequence[int],
    parts: Float64[np.ndarray, ' corpora'],
    seed: int,
  ):
    """Lay out the slots: M = N, or more where a corpus would have none."""
    assert sum(sizes) == len(lengths), (sizes, len(lengths))
    self.counts = np.maximum(apportioned(len(lengths), parts), 1)
    self._seed = seed
    self._rounds: list[_Rounds] = []
    # With one corpus, or all in proportion to their sizes, slots are examples.
    self._plain = self.counts.tolist() == list(sizes)
    self.lengths = lengths
    if not self._plain:
      self._lay_out(lengths, sizes)
      self.lengths = np.concatenate(
        [lengths[rounds.blocks].max(axis=1) for rounds in self._rounds]
      )
    # Several threads request an epoch batch by batch.
    self._cached = functools.lru_cache(maxsize=2)(self._chosen)

  def examples(
    self, epoch: int, slots: Int32[np.ndarray, ' rows']
  ) -> Int32[np.ndarray, ' rows']:
    """Return the examples that slots show in an epoch. Thread-safe."""
    return slots if self._plain else self._cached(epoch)[slots]

  def _lay_out(
    self, lengths: Int32[np.ndarray, 'N 2'], sizes: Sequence[int]
  ) -> None:
    first_slot = first = 0
    for corpus, (size, count) in enumerate(
      zip(sizes, self.counts, strict=True)
    ):
      own = np.arange(first, first + size, dtype=np.int32)
      whole, part = divmod(int(count), size)
      pieces = [own[:, None]] * whole
      if part:
        pieces += _blocks(own[np.lexsort(lengths[own].T)], part)
      for blocks in pieces:
        self._rounds.append(_Rounds(corpus, first_slot, blocks))
        first_slot += len(blocks)
      first += size

  def _chosen(self, epoch: int) -> Int32[np.ndarray, ' M']:
    return np.concatenate(
      [self._shown(rounds, epoch) for rounds in self._rounds]
    )

  def _shown(self, rounds: _Rounds, epoch: int) -> Int32[np.ndarray, ' slots']:
    """Choose one example per block, in a new order after each full cycle."""
    blocks = rounds.blocks
    cycle, position = divmod(epoch, blocks.shape[1])
    entropy = np.random.SeedSequence(
      (self._seed, cycle), spawn_key=(_STREAM, rounds.corpus, rounds.first)
    )
    keys = np.random.Philox(entropy).random_raw(blocks.size)
    order = np.argsort(keys.reshape(blocks.shape), axis=1, kind='stable')
    column = order[:, position : position + 1]
    return np.take_along_axis(blocks, column, axis=1)[:, 0]


def training_mixture(
  data: DataConfig,
  directions: Mapping[str, int],
  lengths: Int32[np.ndarray, 'N 2'],
  seed: int,
) -> Mixture:
  """Build the mixture that a config asks for."""
  weights = {
    direction.name: direction.weight for direction in data.all_directions
  }
  sizes = list(directions.values())
  own = [weights[name] for name in directions]
  parts = shares(sizes, own, data.mixing_temperature)
  return Mixture(lengths, sizes, parts, seed)


def mixture_table(directions: Mapping[str, int], mixture: Mixture) -> str:
  """Format each direction's pairs, share and number of passes as a line."""
  total = mixture.counts.sum()
  rows = [
    (name, size, count, count / total, f'{count / size:.2f}')
    for (name, size), count in zip(
      directions.items(), mixture.counts, strict=True
    )
  ]
  return log_table(
    [('direction', 'pairs', 'an epoch', 'share', 'passes'), *rows]
  )


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
