"""Layer weights that schemes from outside the package declare as views.

Axis letters: B batch, T positions, K layers.
"""

from collections.abc import Mapping
from typing import Any

import jax

from fusion_jax.config import ModelConfig, Side
from fusion_jax.errors import InputError
from fusion_jax.fusion import layers_fused, scheme_of
from fusion_jax.fusion.scheme import DeclaredView

_NAME = 'layer_weights'
# Axes of what is sown for each view: [K], and [B, T, K].
_AXES: Mapping[DeclaredView, int] = {'layer_weights': 1, 'position_weights': 3}


def declares(config: ModelConfig, side: Side, view: DeclaredView) -> bool:
  """Return whether the scheme of a side declares a view of its weights."""
  scheme = scheme_of(config, side)
  return scheme is not None and view in scheme.views


def sources(config: ModelConfig, side: Side, count: int) -> tuple[str, ...]:
  """Return the names of the lowest layers that the scheme of a side reads."""
  return tuple(f'H[{n}]' for n in layers_fused(config, side)[:count])


def sown_weights(
  kept: Mapping[str, Any], config: ModelConfig, side: Side, view: DeclaredView
) -> dict[str, Any]:
  """Return what the modules of a side sowed as 'layer_weights'."""
  found = {}
  for path, value in jax.tree_util.tree_leaves_with_path(kept):
    *modules, name = (part.key for part in path)
    if name == _NAME:
      found['/'.join(modules).replace('read_out', 'output')] = value
  read, axes = len(layers_fused(config, side)), _AXES[view]
  wrong = [
    value.shape
    for value in found.values()
    if value.ndim != axes or value.shape[-1] > read
  ]
  if wrong or not found:
    fusion = config.side(side).fusion
    where = 'telemetry' if axes == 1 else 'views'
    wanted = 'K' if axes == 1 else 'batch, positions, K'
    raise InputError(
      f'fusion={fusion!r} declares the view {view}, which needs {_NAME!r} of '
      f'shape [{wanted}] in {where!r}, K <= {read}; it sows '
      f'{list(wrong[0]) if wrong else "none"}'
    )
  return found
