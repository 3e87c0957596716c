"""Scores by bucket: lines of similar length, words of similar frequency.

Bounds 0, b1, b2, ... make a bucket of 0, the buckets (0, b1], (b1, b2], ... and
one above the last bound.
"""

import bisect
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int
from sacrebleu.metrics import BLEU

from fusion_jax import figures
from fusion_jax.evaluation import Texts, significance
from fusion_jax.metrics import Words, bleu_for

# Bounds of compare-mt (Neubig et al. 2019, https://aclanthology.org/N19-4007):
# 0, 1, 2, 3, 4, 5 to 9, 10 to 99, 100 to 999 and 1,000 or more.
FREQUENCIES: tuple[int, ...] = (0, 1, 2, 3, 4, 9, 99, 999)
# The score of a bucket with fewer lines, or fewer words, says little.
FEW = 20


def bucket_names(bounds: Sequence[int]) -> list[str]:
  """Return the range of each bucket: '0', '1-4' or '>4'."""
  pairs = itertools.pairwise([-1, *bounds])
  names = [str(y) if x + 1 == y else f'{x + 1}-{y}' for x, y in pairs]
  return [*names, f'>{bounds[-1]}']


def quantile_bounds(
  values: Int[np.ndarray, ' N'], count: int = 4
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


def bleu_by_length(
  lengths: Int[np.ndarray, ' S'],
  bounds: Sequence[int],
  systems: Mapping[str, Sequence[significance.Statistics]],
) -> list[dict[str, Any]]:
  """Compute BLEU of the lines of each bucket but 0; `bounds` are above it."""
  bounds = [0, *bounds]
  chosen = np.searchsorted(bounds, lengths)
  rows = []
  for number, bucket in enumerate(bucket_names(bounds)):
    inside = chosen == number
    scores = {
      name: _mean(
        significance.score_of('BLEU', x['BLEU'][inside]) for x in files
      )
      if inside.any()
      else None
      for name, files in systems.items()
    }
    rows.append(
      {'bucket': bucket, 'count': int(inside.sum()), 'scores': scores}
    )
  return rows[1:]


def _mean(values: Iterable[float | None]) -> float | None:
  known = [value for value in values if value is not None]
  return float(np.mean(known)) if known else None


def f1_by_frequency(
  frequency: Mapping[str, int],
  bounds: Sequence[int],
  reference: Sequence[Counter[str]],
  systems: Mapping[str, Sequence[Sequence[Counter[str]]]],
) -> list[dict[str, Any]]:
  """Compute F1 of the words of each bucket, as compare-mt does.

  F1 = 2 m / (r + h): of the words of a bucket, r are in the reference and h in
  the translation; m are in both, matched in the same line and as often.
  """

  def counts(lines: Iterable[Counter[str]]) -> list[int]:
    of_buckets = [0] * (len(bounds) + 1)
    for word, times in itertools.chain.from_iterable(x.items() for x in lines):
      of_buckets[bisect.bisect_left(bounds, frequency.get(word, 0))] += times
    return of_buckets

  def f1(lines: Sequence[Counter[str]]) -> list[float | None]:
    both = counts(map(operator.and_, reference, lines))
    of_buckets = zip(both, wanted, counts(lines), strict=True)
    return [200 * m / (r + h) if r + h else None for m, r, h in of_buckets]

  wanted = counts(reference)
  means = {
    name: [*map(_mean, zip(*map(f1, files), strict=True))]
    for name, files in systems.items()
  }
  return [
    {
      'bucket': bucket,
      'count': wanted[number],
      'scores': {name: column[number] for name, column in means.items()},
    }
    for number, bucket in enumerate(bucket_names(bounds))
  ]


def f1_of_texts(texts: Texts) -> dict[str, Any]:
  """Compute F1 by frequency in the training text, or in the reference."""
  bleu, reference = bleu_for(texts.target_words), texts.references[0]
  counted_in = texts.train_target or reference
  systems = {
    name: [word_counts(text.lines, bleu) for text in files]
    for name, files in texts.systems.items()
  }
  frequency = Counter[str]()
  for words in word_counts(counted_in.lines, bleu):
    frequency.update(words)
  lines = word_counts(reference.lines, bleu)
  rows = f1_by_frequency(frequency, FREQUENCIES, lines, systems)
  # No word of the reference has the frequency 0 in it.
  shown = rows if texts.train_target else rows[1:]
  return {'counted_in': counted_in.path, 'buckets': shown}


def counted(
  texts: Texts, run: significance.Map = map, names: Sequence[str] = ()
) -> dict[str, list[significance.Statistics]]:
  """Count the statistics of every file of each system."""
  files = [text.lines for files in texts.systems.values() for text in files]
  references = [text.lines for text in texts.references]
  statistics = significance.statistics_of(
    files, references, texts.target_words, run, names
  )
  of_files = iter(statistics)
  return {
    name: list(itertools.islice(of_files, len(files)))
    for name, files in texts.systems.items()
  }


def draw(
  figure: figures.Figure,
  axes: Sequence[figures.Axes],
  lengths: Mapping[str, Sequence[Mapping[str, Any]]],
  frequencies: Sequence[Mapping[str, Any]],
) -> None:
  """Draw BLEU by length, by titles, and F1; few lines or words are grey."""
  of_lengths = 'words of the source (lines)', 'BLEU'
  of_words = 'frequency of the word (words)', 'F1 of words (%)'
  drawn = [(rows, *of_lengths, title) for title, rows in lengths.items()]
  drawn.append((frequencies, *of_words, 'by frequency of the target word'))
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
