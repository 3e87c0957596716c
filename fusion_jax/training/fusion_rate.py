"""Separate learning rates for the parameters that only the fusion adds."""

from collections.abc import Mapping

import jax
import optax

from fusion_jax.config import OptimizerConfig
from fusion_jax.models.parameter_kinds import path_name
from fusion_jax.models.transformer import Transformer, initial_parameters


def fusion_rates(
  model: Transformer, config: OptimizerConfig
) -> dict[str, float]:
  """Return the factors on the learning rate of the fusion's parameters.

  Those are the parameters that the same model without fusion lacks.
  """
  sides = {'encoder': model.config.encoder, 'decoder': model.config.decoder}
  rates = {
    name: config.fusion_rate or (side.scheme.rate if side.scheme else 1.0)
    for name, side in sides.items()
  }
  if set(rates.values()) == {1.0}:
    return {}
  plain = model.clone(config=model.config.without_fusion)
  new = _names(model) - _names(plain)
  # The layer embedding belongs to both sides.
  shared = min(rates.values())
  return {name: rates.get(name.partition('/')[0], shared) for name in new}


def scale_by_name(rates: Mapping[str, float]) -> optax.GradientTransformation:
  """Return a transformation that multiplies the updates by their factors."""

  def scaled(path, update):
    return update * rates.get(path_name(path), 1.0)

  return optax.stateless(
    lambda updates, _: jax.tree_util.tree_map_with_path(scaled, updates)
  )


def _names(model: Transformer) -> set[str]:
  shapes = jax.eval_shape(lambda: initial_parameters(model, 0))
  leaves = jax.tree_util.tree_leaves_with_path(shapes)
  return {path_name(path) for path, _ in leaves}
