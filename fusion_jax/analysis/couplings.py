"""Routing of the layers: couplings of input and output capsules.

Dou et al. (AAAI 2019), Fig. 4 and section 4.3.4.

Axis letters: B batch, T positions, I iterations, L input capsules (layers), N
output capsules.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from fusion_jax import figures
from fusion_jax.analysis.passes import TokenMeans, token_means
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view import SIDES, Numbers, View, sides_of
from fusion_jax.config import ModelConfig, Side
from fusion_jax.fusion.routing import coupling_diversity, coupling_entropy

_SCHEMES = 'dynamic_routing', 'em_routing'
# Size of a map in inches, at which 512 capsules have a pixel each.
_MAP_SIZE = 6.0, 2.8
# Dou et al. (2019), section 4.3.4, with 6 layers and 512 capsules; the paper
# does not name the side.
_PAPER = {
  'capsules': 512,
  'uniform_entropy': math.log(512),
  'entropy': [6.24, 5.93, 5.86],
  'diversity': [0.0, 0.09, 0.18],
}


def coupling_maps(analysed: RunWithText) -> Numbers:
  """Measure the mean couplings of every iteration, and their entropy."""
  config = analysed.run.config.model

  def measure(shown, side):
    couplings = shown['read_out']['couplings']
    each = jnp.moveaxis(couplings, 2, 0)
    axis = _axis(config, side)
    return {
      'couplings': couplings,
      'entropy': jnp.stack([coupling_entropy(c, axis) for c in each], -1),
      'diversity': jnp.stack([coupling_diversity(c) for c in each], -1),
    }

  means = token_means(analysed, sides_of(config, *_SCHEMES), measure)
  found = {
    side: _numbers(own, _axis(config, side)) for side, own in means.items()
  }
  return found | {'paper': _PAPER}


def _axis(config: ModelConfig, side: Side) -> Literal['output', 'input']:
  """Return the capsules over which couplings sum to 1; for EM, the output."""
  if config.side(side).fusion == 'em_routing':
    return 'output'
  return config.side(side).routing.route_axis


def _numbers(means: TokenMeans, axis: str) -> dict[str, Any]:
  values = {name: array.tolist() for name, array in means.means.items()}
  _, layers, capsules = means.means['couplings'].shape
  return values | {
    'capsules': capsules,
    'sum_over': axis,
    'uniform_entropy': math.log(capsules if axis == 'output' else layers),
    'positions': means.positions,
  }


def draw(numbers: Numbers) -> figures.Figure:
  """Draw maps of the iterations, a row per side, and the entropies below."""
  sides = [side for side in SIDES if side in numbers]
  columns = max(len(numbers[side]['entropy']) for side in sides)
  columns = max(columns, 2)
  figure, axes = figures.panels(
    columns * len(sides) + 2, columns, size=_MAP_SIZE
  )
  for row, side in enumerate(sides):
    own = axes[row * columns : (row + 1) * columns]
    _draw_maps(own, numbers[side], side)
    for spare in own[len(numbers[side]['entropy']) :]:
      spare.remove()
  named: dict[str, Any] = {side: numbers[side] for side in sides}
  named['Dou 2019'] = numbers['paper']
  entropies = {
    name: [
      value / max(one['uniform_entropy'], 1e-12) for value in one['entropy']
    ]
    for name, one in named.items()
  }
  _draw_curve(axes[-2], entropies, 'entropy / uniform entropy')
  diversities = {name: one['diversity'] for name, one in named.items()}
  _draw_curve(axes[-1], diversities, 'diversity, mean of 1 - cosine')
  figures.share_legend(figure, axes[-2:])
  return figure


def _draw_maps(
  axes: Sequence[figures.Axes], numbers: Mapping[str, Any], side: str
) -> None:
  values = np.array(numbers['couplings'])
  rows = [f'H[{layer}]' for layer in range(1, values.shape[1] + 1)]
  # Uniform couplings take the middle of the colours or less.
  most = max(values.max(), 2 * math.exp(-numbers['uniform_entropy']))
  for index, (panel, one) in enumerate(zip(axes, values, strict=False)):
    figures.draw_map(
      panel,
      one,
      rows,
      (),
      'output capsule',
      'layer',
      'mean coupling',
      (0.0, float(most)),
      upwards=True,
    )
    panel.set_title(
      f'{side}, iteration {index + 1}: '
      f'entropy {numbers["entropy"][index]:.2f} nats'
    )


def _draw_curve(
  axes: figures.Axes, curves: Mapping[str, list[float]], y: str
) -> None:
  lines = {
    name: (range(1, len(values) + 1), values) for name, values in curves.items()
  }
  figures.draw_lines(axes, lines, 'iteration', y)


def summary(numbers: Numbers) -> str:
  """List the entropies, beside the paper's."""
  said = '; '.join(
    f'{side}: '
    + ', '.join(f'{value:.2f}' for value in numbers[side]['entropy'])
    + f' of at most {numbers[side]["uniform_entropy"]:.2f}'
    for side in SIDES
    if side in numbers
  )
  return (
    f'Entropy of the couplings by iteration, in nats: {said} (Dou et al. '
    '2019: 6.24, 5.93, 5.86 of at most 6.24).'
  )


VIEW = View(
  name='couplings',
  title='Where routing sends the layers',
  source='Dou et al. 2019, Fig. 4 and section 4.3.4',
  reading=(
    'Mean coupling of every layer with every output capsule, by iteration of '
    'the routing; the lower the entropy, the more decided.'
  ),
  measure=coupling_maps,
  draw=draw,
  summary=summary,
  applies=lambda config: bool(sides_of(config, *_SCHEMES)),
  needs='a model with dynamic or EM routing',
)
