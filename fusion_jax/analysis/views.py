"""The table of all views of a run."""

import types
from collections.abc import Mapping

from fusion_jax.analysis import (
  ablations,
  couplings,
  curves,
  exploitation,
  gates,
  groups,
  hops,
  layer_weights,
  position_weights,
  similarity,
  surface,
)
from fusion_jax.analysis.probes import view as probes
from fusion_jax.analysis.view import View
from fusion_jax.config import ModelConfig
from fusion_jax.errors import InputError

_VIEWS = (
  similarity.VIEW,
  curves.GRADIENTS,
  curves.CURVES,
  exploitation.VIEW,
  couplings.VIEW,
  hops.VIEW,
  gates.VIEW,
  groups.WEIGHTS,
  groups.BLEU,
  layer_weights.VIEW,
  position_weights.VIEW,
  surface.VIEW,
  ablations.VIEW,
  probes.VIEW,
)
VIEWS: Mapping[str, View] = types.MappingProxyType(
  {view.name: view for view in _VIEWS}
)


def views_of(config: ModelConfig) -> list[View]:
  """Return the views that apply to a model, in the order of the table."""
  return [view for view in VIEWS.values() if view.applies(config)]


def check_view(view: View, config: ModelConfig, name: str) -> None:
  """Refuse a view that does not apply to a model."""
  if not view.applies(config):
    listed = ', '.join(each.name for each in views_of(config))
    raise InputError(
      f'{view.name}: needs {view.needs}, which {name} is not; its views are '
      f'{listed}'
    )
