"""BLEU by the length of the source, in buckets of similar numbers of lines."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusion_jax import figures
from fusion_jax.evaluation import buckets
from fusion_jax.metrics import bleu_for, corpus_scores

_BUCKETS = 6


def bleu_by_source_length(
  sources: Sequence[str],
  references: Sequence[str],
  systems: Mapping[str, Sequence[str]],
  languages: tuple[str, str],
) -> list[dict[str, Any]]:
  """Compute corpus BLEU of the lines of every bucket.

  Args:
    sources: Source lines; their lengths are counted in words of BLEU's
      tokenizer.
    references: Reference translations.
    systems: Translations by the name of a system.
    languages: Source and target language.

  Returns:
    The name, the number of lines and the score of each system, for at most six
    buckets. Lines without a word are in none.
  """
  words = buckets.word_counts(sources, bleu_for(languages[0]))
  lengths = np.array([each.total() for each in words])
  bounds = buckets.quantile_bounds(lengths, _BUCKETS)
  found = []
  for bucket in buckets.buckets_between(bounds):
    rows: Any = np.flatnonzero(bucket.holds(lengths))
    if rows.size:
      own = [references[row] for row in rows]
      scores = {
        name: corpus_scores([lines[row] for row in rows], own, languages[1])
        for name, lines in systems.items()
      }
      bleu = {name: each.bleu for name, each in scores.items()}
      found.append({'bucket': bucket.name, 'count': len(rows), 'scores': bleu})
  return found


def draw_lengths(rows: Sequence[Mapping[str, Any]]) -> figures.Figure:
  """Draw the bars of every bucket, with several systems side by side."""
  figure, (axes,) = figures.panels(1, size=(6.4, 3.6))
  bars = {
    name: [row['scores'][name] for row in rows] for name in rows[0]['scores']
  }
  names = [row['bucket'] for row in rows]
  figures.draw_bars(axes, names, bars, 'words of the source line', 'BLEU')
  # Leave room for the legend above the bars.
  axes.margins(y=0.25)
  return figure
