"""Text of the directions of a run, read as line pairs."""

import itertools
from collections.abc import Iterator, Sequence

from fusion_jax.config import DataConfig
from fusion_jax.config.data import Direction
from fusion_jax.data import corpora
from fusion_jax.data.mixing import apportioned, shares
from fusion_jax.data.tokenizer import normalised
from fusion_jax.progress import with_progress


class Text:
  """Text of a direction.

  Attributes:
    direction: Languages and corpora of the direction.
    tags: Tags before each of its source lines.
    totals: Number of pairs of each of its splits.
  """

  def __init__(self, data: DataConfig, direction: Direction):
    """Count the pairs."""
    languages = direction.source_language, direction.target_language
    self.direction = direction
    self.tags = data.tags(*languages)
    self._several = bool(data.directions)
    self._own = data.between(*languages)
    self._names = splits_of(direction)
    self.totals = {
      name: sum(corpora.count_pairs(corpus, self._own) for corpus in names)
      for name, names in self._names.items()
    }

  def read(self, split: str, what: str) -> Iterator[tuple[str, str]]:
    """Return the pairs of a split as they stand; `what` is for the log."""
    what = f'{what}, {self.direction.name}' if self._several else what
    pairs = _read_all(self._names[split], self._own)
    return with_progress(pairs, what, self.totals[split])


def splits_of(direction: Direction) -> dict[str, tuple[str, ...]]:
  """Return the corpora of each split that a direction has."""
  splits = {
    'train': direction.train,
    'valid': direction.valid,
    'test': direction.test,
  }
  return {name: names for name, names in splits.items() if names}


def tokenizer_pair_count(data: DataConfig, texts: Sequence[Text]) -> int:
  """Return how many training pairs a tokenizer is trained on."""
  config, total = data.tokenizer, sum(text.totals['train'] for text in texts)
  return min(
    config.training_lines // (2 if config.joint else 1) or total, total
  )


def tokenizer_pairs(
  data: DataConfig, texts: Sequence[Text]
) -> Iterator[tuple[str, str]]:
  """Yield training pairs, as many as the tokenizer may have lines.

  Each direction contributes in proportion to its share of the training. Its
  pairs are evenly spaced; where the share exceeds the number of pairs, some or
  all of them are repeated.
  """
  totals = [text.totals['train'] for text in texts]
  weights = [float(text.direction.weight) for text in texts]
  parts = shares(totals, weights, float(data.mixing_temperature))
  counts = apportioned(tokenizer_pair_count(data, texts), parts).tolist()
  for text, total, count in zip(texts, totals, counts, strict=True):
    pairs = text.read('train', 'reading for the tokenizer')
    for index, pair in enumerate(pairs):
      if times := (index + 1) * count // total - index * count // total:
        yield from itertools.repeat(normalised(pair), times)


def _read_all(
  names: tuple[str, ...], data: DataConfig
) -> Iterator[tuple[str, str]]:
  for name in names:
    yield from corpora.read_pairs(name, data)
