"""The figure of a comparison of systems."""

from collections.abc import Mapping, Sequence
from typing import Any

from fusion_jax import figures

_TITLES = {
  'bounds': 'by source length',
  'quantiles': 'by source length, as many lines each',
}


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """Draw BLEU of all systems and by length, and F1 by frequency."""
  lengths = numbers['lengths']
  frequencies = numbers['frequencies']['buckets']
  figure, axes = figures.panels(2 + len(lengths), size=(6.0, 3.6))
  _draw_scores(axes[0], numbers)
  for panel, (kind, rows) in zip(axes[1:], lengths.items(), strict=False):
    _draw_buckets(panel, rows, 'words of the source (lines)', 'BLEU')
    panel.set_title(_TITLES[kind])
  _draw_buckets(
    axes[-1], frequencies, 'frequency of the word', 'F1 of words (%)', False
  )
  axes[-1].set_title('by frequency of the target word')
  if len(numbers['systems']) > 1:
    # One legend for all panels, placed where it covers nothing.
    handles, names = axes[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc='outside lower center', ncols=6)
  return figure


def _draw_scores(panel: figures.Axes, numbers: Mapping[str, Any]) -> None:
  names = list(numbers['systems'])
  tests = numbers['tests']
  if tests:
    found = tests['bootstrap']['BLEU']['systems']
    centres = [found[name]['mean'] for name in names]
    spreads = [found[name]['interval'] for name in names]
  else:
    centres = [numbers['seeds']['BLEU'][name]['scores'][0] for name in names]
    spreads = [0.0] * len(names)
  scores = [numbers['seeds']['BLEU'][name]['scores'] for name in names]
  x = 'BLEU (the axis does not start at 0)'
  figures.draw_intervals(panel, names, centres, spreads, scores, x)
  panel.set_title('intervals: 95 % of the bootstrap; crosses: seeds')


def _draw_buckets(
  panel: figures.Axes,
  rows: Sequence[Mapping[str, Any]],
  x: str,
  y: str,
  counts: bool = True,
) -> None:
  filled = [row for row in rows if row['count']]
  names = [
    f'{row["bucket"]}\n({row["count"]:,})' if counts else row['bucket']
    for row in filled
  ]
  bars = {
    name: [figures.drawn(row['scores'][name]) for row in filled]
    for name in rows[0]['scores']
  }
  figures.draw_bars(panel, names, bars, x, y)
  if legend := panel.get_legend():
    legend.remove()
