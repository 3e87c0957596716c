"""Mean of all layers; Wang et al. (COLING 2018), section 3.2.

Axis letters: B batch, T positions, D model width, n fused layers (H[0] may be
one of them).
"""

import functools
from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.section import section
from fusion_jax.fusion.inputs import FusionModule
from fusion_jax.fusion.scheme import (
  all_layers,
  layers_above_embedding,
  on_both_sides,
)
from fusion_jax.layers.context import Context, Layers, States
from fusion_jax.layers.residual import layer_norm, plain_norm


@section('model.*.options')
class AverageOptions:
  """Average of the layers (Wang 2018, Eq. 3)."""

  include_embedding: bool = True
  """Whether H[0] is fused too."""

  norm: Literal['affine', 'plain', 'none'] = 'affine'
  """Norm after the fusion, with or without scale and offset."""


def average(layers: Layers) -> States:
  """Return 1/n sum_l z[l], taken in float32; Wang et al. (2018), sec. 3.2."""
  total = functools.reduce(jnp.add, (z.astype(jnp.float32) for z in layers))
  return (total / len(layers)).astype(layers[0].dtype)


class Average(FusionModule):
  """Fusion norm(1/n sum_l z[l]); Wang et al. (2018), section 3.2, pooling."""

  def setup(self):
    self.norm = mlrf_norm(self.config, self.side)

  def __call__(self, layers: Layers, context: Context) -> States:
    """Return the normalised mean of the layers."""
    options = self.options
    chosen = layers if options.include_embedding else layers[1:]
    return self.norm(average(chosen))


def mlrf_norm(config: ModelConfig, side: Side) -> Callable[[Array], Array]:
  """Return the norm after fusion; 'plain' has neither scale nor offset."""
  kind = config.side(side).options.norm
  if kind == 'affine':
    return layer_norm(config)
  if kind == 'none':
    return lambda x: x
  return plain_norm(config)


def mlrf_layers(config: ModelConfig, side: Side) -> tuple[int, ...]:
  """Return the numbers of the layers that the paper's fusions read."""
  if config.side(side).options.include_embedding:
    return all_layers(config, side)
  return layers_above_embedding(config, side)


SCHEME = on_both_sides(
  'average',
  Average,
  'layer aggregation',
  'Wang et al. 2018, Eq. 3',
  AverageOptions,
  layers_read=mlrf_layers,
)
