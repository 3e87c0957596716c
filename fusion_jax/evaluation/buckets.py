"""Scores by bucket: lines of similar length, words of similar frequency.

A bucket (a, b] contains the values above a and up to b.
"""

import dataclasses
import itertools
import math
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from sacrebleu.metrics import BLEU

from fusion_jax import figures
from fusion_jax.evaluation import Texts
from fusion_jax.evaluation.significance import (
  Map,
  Statistics,
  score_of,
  statistics_of,
)
from fusion_jax.metrics import Words, bleu_for

# Bounds of compare-mt (Neubig et al. 2019, https://aclanthology.org/N19-4007):
# 0, 1, 2, 3, 4, 5 to 9, 10 to 99, 100 to 999 and 1,000 or more.
FREQUENCIES: tuple[int, ...] = (0, 1, 2, 3, 4, 9, 99, 999)
# The score of a bucket with fewer lines, or fewer words, says little.
FEW = 20


@dataclasses.dataclass(frozen=True)
class Bucket:
  """The values above `low` and up to `high`; None is no bound."""

  low: int
  high: int | None

  @property
  def name(self) -> str:
    """The name of the range: '0', '1-4' or '>4'."""
    if self.high is None:
      return f'>{self.low}'
    first = self.low + 1
    return str(first) if first == self.high else f'{first}-{self.high}'

  def holds(self, values: Int[np.ndarray, ' N']) -> np.ndarray:
    """Return which of the values are in the bucket."""
    high = math.inf if self.high is None else self.high
    return (values > self.low) & (values <= high)


def buckets_between(bounds: Sequence[int], low: int = 0) -> list[Bucket]:
  """Make buckets (low, b1], (b1, b2], ... and one above the last bound."""
  lows = [low, *bounds]
  return [Bucket(*pair) for pair in zip(lows, [*bounds, None], strict=True)]


def quantile_bounds(
  values: Int[np.ndarray, ' N'], count: int
) -> tuple[int, ...]:
  """Choose bounds between buckets of similar numbers of values."""
  values = np.sort(values[values > 0])
  if not values.size:
    return ()
  places = np.arange(1, count) / count
  bounds = np.quantile(values, places, method='inverted_cdf')
  return tuple(sorted({*map(int, bounds)} - {int(values[-1])}))


def word_counts(lines: Iterable[str], bleu: BLEU) -> list[Counter[str]]:
  """Count every word in every line, with words as BLEU's tokenizer has them."""
  return [Counter(bleu.tokenizer(line.rstrip()).split()) for line in lines]


def line_lengths(
  lines: Iterable[str], language: str | Words
) -> Int[np.ndarray, ' S']:
  """Count the words of every line."""
  counts = word_counts(lines, bleu_for(language))
  return np.array([words.total() for words in counts])


def total(lines: Iterable[Counter[str]]) -> Counter[str]:
  """Add up the words of all lines."""
  words = Counter[str]()
  for line in lines:
    words.update(line)
  return words


def bleu_by_length(
  lengths: Int[np.ndarray, ' S'],
  buckets: Sequence[Bucket],
  systems: Mapping[str, Sequence[Statistics]],
) -> list[dict]:
  """Compute BLEU of the lines of each bucket."""
  rows = []
  for bucket in buckets:
    chosen = bucket.holds(lengths)
    scores = {
      name: float(np.mean([score_of('BLEU', x['BLEU'][chosen]) for x in files]))
      if chosen.any()
      else None
      for name, files in systems.items()
    }
    rows.append(
      {'bucket': bucket.name, 'count': int(chosen.sum()), 'scores': scores}
    )
  return rows


def f1_by_frequency(
  frequency: Mapping[str, int],
  buckets: Sequence[Bucket],
  reference: Sequence[Counter[str]],
  systems: Mapping[str, Sequence[Sequence[Counter[str]]]],
) -> list[dict]:
  """Compute F1 of the words of each bucket, as compare-mt does.

  F1 = 2 m / (r + h): of the words of a bucket, r are in the reference and h in
  the translation; m are in both, matched in the same line and as often.
  """
  columns = {
    name: [_f1(frequency, buckets, reference, lines) for lines in files]
    for name, files in systems.items()
  }
  counts = _counts(frequency, buckets, reference)
  return [
    {
      'bucket': bucket.name,
      'count': int(count),
      'scores': {
        name: _mean([column[place] for column in files])
        for name, files in columns.items()
      },
    }
    for place, (bucket, count) in enumerate(zip(buckets, counts, strict=True))
  ]


def f1_of_texts(texts: Texts) -> dict[str, Any]:
  """Compute F1 by frequency in the training text, or in the reference."""
  bleu, reference = bleu_for(texts.target_words), texts.references[0]
  # No word of the reference has the frequency 0 in it.
  counted_in, ranges, low = reference, FREQUENCIES[1:], 0
  if texts.train_target:
    counted_in, ranges, low = texts.train_target, FREQUENCIES, -1
  rows = f1_by_frequency(
    total(word_counts(counted_in.lines, bleu)),
    buckets_between(ranges, low),
    word_counts(reference.lines, bleu),
    {
      name: [word_counts(text.lines, bleu) for text in files]
      for name, files in texts.systems.items()
    },
  )
  return {'counted_in': counted_in.path, 'buckets': rows}


def _f1(
  frequency: Mapping[str, int],
  buckets: Sequence[Bucket],
  reference: Sequence[Counter[str]],
  lines: Sequence[Counter[str]],
) -> list[float | None]:
  both = map(operator.and_, reference, lines)
  matches, wanted, given = (
    _counts(frequency, buckets, words) for words in (both, reference, lines)
  )
  return [
    200 * float(m) / float(r + h) if r + h else None
    for m, r, h in zip(matches, wanted, given, strict=True)
  ]


def _counts(
  frequency: Mapping[str, int],
  buckets: Sequence[Bucket],
  lines: Iterable[Counter[str]],
) -> Int[np.ndarray, ' N']:
  """Count the words of each bucket in the lines."""
  words = total(lines)
  frequencies = np.array([frequency.get(word, 0) for word in words], np.int64)
  counts = np.array(list(words.values()), np.int64)
  return np.array(
    [counts[bucket.holds(frequencies)].sum() for bucket in buckets]
  )


def _mean(values: Sequence[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return sum(known) / len(known) if known else None


def counted(
  texts: Texts, run: Map = map, names: Collection[str] | None = None
) -> dict[str, list[Statistics]]:
  """Count the statistics of every file of each system."""
  files = [text.lines for files in texts.systems.values() for text in files]
  references = [text.lines for text in texts.references]
  statistics = statistics_of(files, references, texts.target_words, run, names)
  of_files = iter(statistics)
  return {
    name: list(itertools.islice(of_files, len(files)))
    for name, files in texts.systems.items()
  }


class Drawn(NamedTuple):
  """Buckets that are drawn in a panel, and the words beside them."""

  rows: Sequence[Mapping[str, Any]]
  x: str
  y: str
  title: str


def by_length(rows: Sequence[Mapping[str, Any]], title: str) -> Drawn:
  """Return BLEU by length as it is drawn."""
  return Drawn(rows, 'words of the source (lines)', 'BLEU', title)


def by_frequency(rows: Sequence[Mapping[str, Any]]) -> Drawn:
  """Return F1 by frequency as it is drawn."""
  x, y = 'frequency of the word (words)', 'F1 of words (%)'
  return Drawn(rows, x, y, 'by frequency of the target word')


def draw(
  figure: figures.Figure, axes: Sequence[figures.Axes], drawn: Sequence[Drawn]
) -> None:
  """Draw the buckets that are not empty; few lines or words are grey."""
  for panel, (rows, x, y, title) in zip(axes, drawn, strict=True):
    filled = [row for row in rows if row['count']]
    bars = {
      system: [row['scores'][system] for row in filled]
      for system in rows[0]['scores']
    }
    names = ['{bucket}\n({count:,})'.format(**row) for row in filled]
    figures.draw_bars(panel, names, bars, x, y)
    panel.set_title(title)
  if len(bars) > 1:
    figures.share_legend(figure, axes)
  # After the legend, which shows the colours.
  for panel, (rows, *_) in zip(axes, drawn, strict=True):
    _grey_few(panel, [row['count'] for row in rows if row['count']])


def _grey_few(panel: figures.Axes, counts: Sequence[int]) -> None:
  """Let only the edges of bars that say little keep their colours."""
  few = [place for place, count in enumerate(counts) if count < FEW]
  for place, bars in itertools.product(few, panel.containers):
    bar = bars[place]
    bar.set(edgecolor=bar.get_facecolor(), facecolor='#CCCCCC')
  if few:
    panel.set_xlabel(f'{panel.get_xlabel()}; grey: fewer than {FEW}')
