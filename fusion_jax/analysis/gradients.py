"""The gradient norm of every encoder layer over the training.

Yang et al. (2022), Fig. 11: without fusion the lower layers of a deep stack
get little gradient.
"""

import re
from collections.abc import Mapping
from typing import Any

from fusion_jax.analysis import figures
from fusion_jax.analysis.finding import Finding, View
from fusion_jax.analysis.subject import Subject

_NORM = re.compile(r'encoder_gradient_norm_(\d+)')


def gradient_norms(subject: Subject) -> Mapping[str, Any]:
  """Norms by layer, as they were logged.

  Args:
    subject: the run.

  Returns:
    'steps', and 'layers': for each number of a layer one norm a step, the mean
    over the updates since the step before; null where it was not finite.
  """
  rows = subject.of_kind('train')
  numbers = sorted(
    int(match[1]) for match in map(_NORM.fullmatch, rows[-1]) if match
  )
  return {
    'steps': [row['step'] for row in rows],
    'layers': {
      str(number): [row.get(f'encoder_gradient_norm_{number}') for row in rows]
      for number in numbers
    },
  }


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """One line a layer, on a logarithmic axis."""
  figure, (axes,) = figures.panels(1, size=(6.4, 3.6))
  curves = {
    f'layer {layer}': (
      numbers['steps'],
      [float('nan') if value is None else value for value in values],
    )
    for layer, values in numbers['layers'].items()
  }
  figures.draw_lines(
    axes, curves, 'update', 'norm of the mean gradient of an encoder layer'
  )
  axes.set_yscale('log')
  return figure


def look(subject: Subject) -> Finding:
  """Reads and draws."""
  numbers = gradient_norms(subject)
  last = {name: norms[-1] for name, norms in numbers['layers'].items()}
  listed = ', '.join(f'{norm:.3g}' for norm in last.values() if norm)
  return Finding(
    numbers,
    lambda: draw(numbers),
    f'At update {numbers["steps"][-1]:,} the norms of the encoder layers, from '
    f'the lowest, are {listed}.',
  )


VIEW = View(
  name='gradients',
  title='Gradients of the layers',
  source='Yang et al. 2022, Fig. 11',
  reading=(
    'Norm of the gradient of the mean loss by the parameters of each encoder '
    'layer, over the training.'
  ),
  look=look,
  reads='metrics',
)
