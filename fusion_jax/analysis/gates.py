"""How far lexical shortcuts are open: by layer, by position, by frequency.

Emelin et al. (WMT 2019), appendix A.3: 'we were unable to discern any distinct
patterns in the activations of the individual gates'.

Axis letters: L layers, P parts of a text.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from fusion_jax import figures
from fusion_jax.analysis.frequency import BINS
from fusion_jax.analysis.gate_sums import (
  KINDS,
  POSITIONS,
  PlaceMoments,
  gate_moments,
  gate_places,
)
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view_result import View, ViewResult

# Parts of a text; part 0 is all of it.
_PARTS = {
  'position': slice(1, 1 + POSITIONS),
  'frequency': slice(1 + POSITIONS, 1 + POSITIONS + BINS),
}
_AXES = {
  'layer': 'layer',
  'position': 'position in the sentence',
  'frequency': 'tenth of the text, 1: least frequent subwords',
}


def gate_numbers(subject: RunWithText) -> Mapping[str, Any]:
  """Measure the mean and deviation of the gates of keys and values.

  Args:
    subject: Run and text to measure.

  Returns:
    For each attention with gates ('encoder self-attention' and the like), and
    for 'key_gate' and 'value_gate': 'mean' and 'deviation' over positions and
    features, by 'layer' [L], by 'position' [20][L] and by 'frequency' [10][L];
    None where the text has no such position. 'positions' holds the number of
    positions in total and of each kind.
  """
  moments = gate_moments(subject)
  return {place.name: _numbers(own) for place, own in moments.items()}


def _numbers(moments: PlaceMoments) -> dict[str, Any]:
  found: dict[str, Any] = {
    kind: {
      name: _by_part(values[..., index])
      for name, values in (
        ('mean', moments.mean),
        ('deviation', moments.deviation),
      )
    }
    for index, kind in enumerate(KINDS)
  }
  counts = {part: moments.counts[own].tolist() for part, own in _PARTS.items()}
  found['positions'] = {'all': int(moments.counts[0])} | counts
  return found


def _by_part(values: Float[np.ndarray, 'P L']) -> dict[str, Any]:
  finite = [
    [x if np.isfinite(x) else None for x in row] for row in values.tolist()
  ]
  return {'layer': finite[0]} | {
    part: finite[own] for part, own in _PARTS.items()
  }


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """Draw means above and deviations below, by layer, position, frequency.

  Those by position and frequency are averaged over the layers.
  """
  figure, axes = figures.panels(6, columns=3)
  panels = iter(axes)
  for moment in ('mean', 'deviation'):
    for part, name in _AXES.items():
      curves = {
        f'{place}, {kind[: -len("_gate")]}s': _curve(own[kind][moment][part])
        for place, own in numbers.items()
        for kind in KINDS
      }
      figures.draw_lines(next(panels), curves, name, f'{moment} of the gates')
  figures.share_legend(figure, axes)
  return figure


def _curve(
  values: Sequence[Any],
) -> tuple[list[int], list[float]]:
  """Number values from 1, and average those that have one value per layer."""
  curve = [
    (number, float(np.mean(value)))
    for number, value in enumerate(values, start=1)
    if not (isinstance(value, list) and None in value)
  ]
  return [x for x, _ in curve], [y for _, y in curve]


def look(subject: RunWithText) -> ViewResult:
  """Measure the gates, and summarise and draw them."""
  numbers = gate_numbers(subject)
  said = '; '.join(
    f'{place} {np.mean(own["key_gate"]["mean"]["layer"]):.3f} of keys and '
    f'{np.mean(own["value_gate"]["mean"]["layer"]):.3f} of values'
    for place, own in numbers.items()
  )
  return ViewResult(
    numbers,
    lambda: draw(numbers),
    f'Mean gates, where 1 takes the shortcut: {said}.',
  )


VIEW = View(
  name='gates',
  title='How far the shortcuts are open',
  source='Emelin et al. 2019, Eq. 5-12 and appendix A.3',
  reading=(
    'Gates of keys and values, 1 takes the shortcut; over positions and '
    'features, by layer, by position in the sentence, and by how frequent the '
    'subword that is read is in this text.'
  ),
  look=look,
  applies=lambda config: bool(gate_places(config)),
  needs='a model with shortcuts (shortcut.source)',
)
