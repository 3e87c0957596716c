"""BLEU by the length of the source, as a curve with few buckets."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusion_jax.analysis import figures
from fusion_jax.analysis.report_marks import units
from fusion_jax.evaluation.metrics import corpus_scores

_BUCKETS = 6


def length_buckets(lengths: Sequence[int]) -> list[tuple[int, int]]:
  """Shortest and longest of buckets with about as many lines each.

  Args:
    lengths: of all lines.

  Returns:
    At most six, ascending; every length is in one of them.
  """
  edges = np.quantile(
    lengths, np.linspace(0, 1, _BUCKETS + 1)[1:], method='inverted_cdf'
  )
  lasts = sorted(set(edges.astype(int).tolist()))
  firsts = [min(lengths), *(last + 1 for last in lasts[:-1])]
  return list(zip(firsts, lasts, strict=True))


def bleu_by_source_length(
  sources: Sequence[str],
  references: Sequence[str],
  systems: Mapping[str, Sequence[str]],
  languages: tuple[str, str],
) -> Mapping[str, Any]:
  """Corpus BLEU of the lines of every bucket.

  Args:
    sources: lines; their length is in words, or in characters where no spaces
      part words.
    references: their translations.
    systems: translations by the name of a system.
    languages: of source and target.

  Returns:
    'buckets': first and last length and the lines of each; 'bleu': of each
    system one score a bucket.
  """
  lengths = [len(units(source, languages[0])) for source in sources]
  buckets = length_buckets(lengths)
  rows = [
    [row for row, length in enumerate(lengths) if first <= length <= last]
    for first, last in buckets
  ]
  return {
    'buckets': [
      {'first': first, 'last': last, 'lines': len(own)}
      for (first, last), own in zip(buckets, rows, strict=True)
    ],
    'bleu': {
      name: [
        corpus_scores(
          [lines[row] for row in own],
          [references[row] for row in own],
          languages[1],
        ).bleu
        for own in rows
      ]
      for name, lines in systems.items()
    },
  }


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """Bars of every bucket, side by side for several systems."""
  figure, (axes,) = figures.panels(1, size=(6.4, 3.6))
  names = [bucket_name(each) for each in numbers['buckets']]
  figures.draw_bars(
    axes, names, numbers['bleu'], 'length of the source line', 'BLEU'
  )
  # The legend stands above the bars.
  axes.margins(y=0.25)
  return figure


def bucket_name(bucket: Mapping[str, int]) -> str:
  """'5-9' and the like."""
  first, last = bucket['first'], bucket['last']
  return str(first) if first == last else f'{first}-{last}'
