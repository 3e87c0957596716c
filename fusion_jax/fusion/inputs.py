"""What a fusion reads, and what layers read of a fusion.

A fusion reads H[0..L], with `per_layer_norms` each after its own norm: the
states of a residual stream without norms between the layers differ in scale
from layer to layer, and norms make them comparable.

With start='baseline' a fusion starts as exactly the model without it. One that
replaces x by y computes x + g * (y - x), where the opening g is a vector that
starts at 0: at g = 1 it is the fusion itself. Schemes whose parameters can give
y = x start as identity maps and have no opening.

Axis letters: B batch, M rows of a pass, T positions, D model width, K layers
that are summed, J layers of the decoder.
"""

import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.layers.attention import (
  LayerInput,
  MultiHeadAttention,
  key_value,
)
from fusion_jax.layers.context import Context, KeyValue, Layers, States
from fusion_jax.layers.dense import parameter
from fusion_jax.layers.residual import layer_norm
from fusion_jax.layers.sow import sow


def weighted_sum(weights: Float[Array, 'K *w'], layers: Layers) -> States:
  """Return sum_k w_k x_k, computed in float32, in the layers' dtype."""
  terms = (w * x for w, x in zip(weights, layers, strict=True))
  return sum(terms).astype(layers[0].dtype)


def per_layer_norms(config: ModelConfig, side: Side) -> bool:
  """Return whether every layer that is fused has its own norm."""
  return config.side(side).per_layer_norms(config.norm)


class FusionModule(nn.Module):
  """Base of the modules of a scheme, which know their side and its options."""

  config: ModelConfig
  side: Side

  @property
  def options(self) -> Any:
    """The options of the scheme of the side."""
    return self.config.side(self.side).options


class InputNorms(FusionModule):
  """Norms LN_l(H[l]) of the layers `read`; without `per_layer_norms` none."""

  read: tuple[int, ...]

  def setup(self):
    if per_layer_norms(self.config, self.side):
      self.input_norm = {str(n): layer_norm(self.config) for n in self.read}

  def one(self, number: int, layer: States) -> States:
    """Return the layer of that number as a fusion reads it."""
    if number not in self.read or not per_layer_norms(self.config, self.side):
      return layer
    return self.input_norm[str(number)](layer)

  def __call__(self, layers: Layers) -> Layers:
    """Return all of H[0..L] as a fusion reads them."""
    return tuple(self.one(n, layer) for n, layer in enumerate(layers))


class LayerConnection(FusionModule):
  """Plain connection: layers read the layer below, and the output is H[L]."""

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[Float[Array, '*J B T D'] | LayerInput, tuple[Any, ...]]:
    """Return the next layer's input, or after the last the stack's output.

    Args:
      layers: States H[0..l-1] below layer l.
      carried: Second result of the call for layer l - 1; () at first.

    Returns:
      The input of layer l, and the `carried` of the next call. The output of an
      encoder may be one for each decoder layer, [J, B, T, D], or two, one for
      keys and one for values, [J, 2, B, T, D].
    """
    del context
    return layers[-1], carried

  def layer_output(self, layers: Layers, y: States) -> States:
    """Return H[l], the next entry of `layers`."""
    del layers
    return y


# Names of the sums that a layer reads, by their number. Of three, the query's
# is the residual too.
WAYS: Mapping[int, tuple[str, ...]] = types.MappingProxyType(
  {1: LayerInput._fields[:1], 3: LayerInput._fields[1:], 4: LayerInput._fields}
)


class StreamAttention(MultiHeadAttention):
  """Self-attention whose query, key and value read sums of their own.

  The norm before the sublayer is the query's; the key and the value have norms
  of their own.
  """

  def setup(self):
    super().setup()
    self.key_norm = layer_norm(self.config)
    self.value_norm = layer_norm(self.config)

  def attend(
    self, x: LayerInput, h: States, layers: Layers, context: Context
  ) -> States:
    """Self-attend; see `MultiHeadAttention.attend`."""
    del layers
    seen = context.caches.extend(self._streams(x))
    return self(h, seen, context.mask, context.deterministic)

  @nn.nowrap
  def from_plain(
    self,
    own: Mapping[str, Any],
    plain: Mapping[str, Any],
    residual: Mapping[str, Any],
  ) -> Mapping[str, Any]:
    """Take the norm before the trained attention for keys and values too.

    See `MultiHeadAttention.from_plain`.
    """
    del plain
    # Copies, because the arrays will be donated, each once.
    norms = {
      name: jax.tree.map(jnp.copy, residual['norm'])
      for name in ('key_norm', 'value_norm')
    }
    return {**own, **norms}

  def _streams(self, x: LayerInput) -> KeyValue:
    keys = self.key(self.key_norm(x.key))
    values = self.value(self.value_norm(x.value))
    return key_value(keys, values, self.config.heads)


class Opening(nn.Module):
  """Blend x + g * (y - x) with a vector g that starts at 0.

  The form is that of the residual weights of ReZero (Bachlechner et al. 2020)
  and LayerScale (Touvron et al. 2021), between two tensors.

  Telemetry: 'opening', the mean of |g|.
  """

  config: ModelConfig

  def setup(self):
    zeros, shape = nn.initializers.zeros_init(), (self.config.width,)
    self.gate = parameter(self, 'gate', zeros, ('norm',), shape)

  def values(self) -> Float[Array, ' D']:
    """Return g, float32."""
    sow(self, 'telemetry', 'opening', jnp.abs(self.gate).mean())
    return self.gate

  def __call__(
    self, plain: Float[Array, '*#B T D'], fused: Float[Array, '*B T D']
  ) -> Float[Array, '*B T D']:
    """Return plain + g * (fused - plain), computed in float32."""
    x, y = plain.astype(jnp.float32), fused.astype(jnp.float32)
    return (x + self.values() * (y - x)).astype(fused.dtype)


def reads_plain_layers(config: ModelConfig, side: Side) -> bool:
  """Return whether an identity map of the top layer gives the plain model.

  It does where the fused layers have no norm of their own, and with pre-norm,
  where the norm at the end of the stack changes nothing: LN(LN(x)) = LN(x).
  """
  return config.norm == 'pre' or not per_layer_norms(config, side)
