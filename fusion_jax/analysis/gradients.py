"""The gradient norm of every encoder layer over the training.

Yang et al. (2022), Eq. 8 and Fig. 11: fusing groups balances the gradients of
low and high layers.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fusion_jax import figures
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view_result import View, ViewResult
from fusion_jax.errors import InputError

_NORM = re.compile(r'encoder_gradient_norm_(\d+)')
# Most lines of a panel.
_MOST_LINES = 5


def gradient_norms(subject: RunWithText) -> Mapping[str, Any]:
  """Read the logged norms by layer.

  Args:
    subject: Run; only its metrics are read.

  Returns:
    'steps', and 'layers': for the number of each layer one norm per step, the
    mean over the updates since the previous step; None where it was not finite.

  Raises:
    InputError: No norms were logged.
  """
  rows = subject.of_kind('train')
  numbers = sorted(
    int(match[1]) for match in map(_NORM.fullmatch, rows[-1]) if match
  )
  if not numbers:
    raise InputError(
      f'{subject.workdir}/metrics.jsonl: has no encoder_gradient_norm_1; an '
      'older version wrote it'
    )
  return {
    'steps': [row['step'] for row in rows],
    'layers': {
      str(number): [row.get(f'encoder_gradient_norm_{number}') for row in rows]
      for number in numbers
    },
  }


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """Draw a line per layer over updates, and a line per update over layers."""
  steps, layers = numbers['steps'], numbers['layers']
  figure, axes = figures.panels(2)
  shown = [list(layers)[place] for place in _spread(len(layers))]
  over_updates = {
    f'layer {layer}': (steps, list(map(figures.drawn, layers[layer])))
    for layer in shown
  }
  figures.draw_lines(axes[0], over_updates, 'update', 'gradient norm')
  over_layers = {
    f'update {steps[place]:,}': (
      list(map(int, layers)),
      [figures.drawn(norms[place]) for norms in layers.values()],
    )
    for place in _spread(len(steps))
  }
  figures.draw_lines(axes[1], over_layers, 'encoder layer', 'gradient norm')
  for panel in axes:
    panel.set_yscale('log')
  return figure


def look(subject: RunWithText) -> ViewResult:
  """Read the norms, and summarise and draw them."""
  numbers = gradient_norms(subject)
  lasts = (norms[-1] for norms in numbers['layers'].values())
  listed = ', '.join('?' if last is None else f'{last:.3g}' for last in lasts)
  return ViewResult(
    numbers,
    lambda: draw(numbers),
    f'At update {numbers["steps"][-1]:,} the norms of the encoder layers, from '
    f'the lowest, are {listed}.',
  )


def _spread(count: int) -> Sequence[int]:
  """Return at most five indices of a list, including first and last."""
  most = min(count, _MOST_LINES)
  if most < 2:
    return range(most)
  return [round(i * (count - 1) / (most - 1)) for i in range(most)]


VIEW = View(
  name='gradients',
  title='Gradients of the layers',
  source='Yang et al. 2022, Fig. 11',
  reading=(
    'Norm of the gradient of the mean loss by the parameters of each encoder '
    'layer, layer 1 the lowest: left over the training, of at most five '
    'layers; right over the layers, at five updates from first to last.'
  ),
  look=look,
  reads='metrics',
)
