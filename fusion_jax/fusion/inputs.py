"""Inputs of a fusion: H[0..L], with `per_layer_norms` each after its own norm.

The states of a residual stream without norms between the layers differ in
scale from layer to layer; a norm for each layer makes them comparable.

Axis letters: B batch, T positions, D model width, K layers that are summed.
"""

from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.layers.residual import layer_norm

Layers = tuple[Float[Array, 'B T D'], ...]


def weighted_sum(
  weights: Float[Array, 'K *w'], layers: Layers
) -> Float[Array, 'B T D']:
  """Return sum_k w_k x_k, computed in float32.

  Args:
    weights: Scalar, vector or array for each of the layers, float32.

  Returns:
    The sum in the layers' dtype.
  """
  terms = (w * x for w, x in zip(weights, layers, strict=True))
  return sum(terms).astype(layers[0].dtype)


def per_layer_norms(config: ModelConfig, side: Side) -> bool:
  """Return whether every layer that is fused has its own norm."""
  return config.side(side).per_layer_norms(config.norm)


class InputNorms(nn.Module):
  """Norms LN_l(H[l]) of the layers read; without `per_layer_norms` none.

  Attributes:
    read: Numbers of the layers that a fusion reads; 0 is the embedding.
  """

  config: ModelConfig
  side: Side
  read: tuple[int, ...]

  def setup(self):
    if per_layer_norms(self.config, self.side):
      self.input_norm = {str(n): layer_norm(self.config) for n in self.read}

  def one(
    self, number: int, layer: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D']:
    """Return the layer of that number as a fusion reads it."""
    if number not in self.read or not per_layer_norms(self.config, self.side):
      return layer
    return self.input_norm[str(number)](layer)

  def __call__(self, layers: Layers) -> Layers:
    """Return all of H[0..L] as a fusion reads them."""
    return tuple(self.one(n, layer) for n, layer in enumerate(layers))
