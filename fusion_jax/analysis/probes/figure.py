"""The figure of the accuracies of probes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusion_jax import figures
from fusion_jax.analysis.frequency import BINS
from fusion_jax.analysis.probes.passes import SIDES
from fusion_jax.analysis.probes.training import KINDS


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """Draw accuracy by layer of both stacks; of the MLP also by bin and tag."""
  tagged = [side for side in SIDES if 'tag_positions' in numbers[side]]
  figure, axes = figures.panels(4 + len(tagged), size=(5.2, 3.6))
  for index, side in enumerate(SIDES):
    own = numbers[side]
    layers = [float(layer) for layer in range(len(own['mlp']['accuracy']))]
    figures.draw_lines(
      axes[index],
      {
        f'{kind}, {name}': (layers, own[kind][field])
        for kind in KINDS
        for name, field in (('tokens', 'accuracy'), ('control', 'control'))
      },
      f'layer of the {side}',
      'accuracy',
    )
    axes[index].set_ylim(-0.02, 1.02)
    axes[index].set_title(f'{side}')
    _draw_groups(
      axes[2 + index],
      own['mlp']['bins'],
      [str(number) for number in range(1, BINS + 1)],
      side,
      'tenth of the tokens, from the least frequent types',
    )
  for panel, side in zip(axes[4:], tagged, strict=True):
    tags = numbers[side]['mlp']['tags']
    columns = list(zip(*tags.values(), strict=True))
    _draw_groups(panel, columns, list(tags), side, 'word class')
    panel.tick_params(axis='x', rotation=90)
  return figure


def _draw_groups(
  panel: Any, rows: Sequence[Sequence[Any]], names: list[str], side: str, x: str
) -> None:
  values = np.array(rows, np.float64)
  layers = [str(layer) for layer in range(len(values))]
  figures.draw_map(
    panel, values, layers, names, x, 'layer', 'accuracy of the MLP', (0.0, 1.0)
  )
  panel.set_title(side)
