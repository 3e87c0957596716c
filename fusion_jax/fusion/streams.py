"""Streams: a layer that reads one sum for its residual and others to attend.

Axis letters: M batch, T positions, D model width.
"""

import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fusion_jax.layers.attention import (
  LayerInput,
  MultiHeadAttention,
  key_value,
)
from fusion_jax.layers.caches import KeyValue
from fusion_jax.layers.context import Context
from fusion_jax.layers.residual import layer_norm

# Names of the sums that a layer reads, by their number. Of three, the query's
# is the residual too.
WAYS: Mapping[int, tuple[str, ...]] = types.MappingProxyType(
  {
    1: LayerInput._fields[:1],
    3: LayerInput._fields[1:],
    4: LayerInput._fields,
  }
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
    self,
    x: LayerInput,
    h: Float[Array, 'M T D'],
    layers: tuple[Float[Array, 'M T D'], ...],
    context: Context,
  ) -> Float[Array, 'M T D']:
    """Self-attend; see `MultiHeadAttention.attend`."""
    del layers
    seen = context.caches.extend(self._streams(x))
    return self(h, seen, context.mask, context.deterministic)

  def _streams(self, x: LayerInput) -> KeyValue:
    keys = self.key(self.key_norm(x.key))
    values = self.value(self.value_norm(x.value))
    return key_value(keys, values, self.config.heads)


def with_stream_norms(
  layer: Mapping[str, Any], trained: Mapping[str, Any]
) -> dict[str, Any]:
  """Return a layer whose keys and values have the norm of a trained one.

  Args:
    layer: Parameters of a layer with `StreamAttention`.
    trained: Parameters of the same layer of a plain model.

  Returns:
    `layer` with the norm before the trained self-attention in place of those
    of its keys and values.
  """
  norm = trained['self_attention_residual']['norm']
  # Copies, because the arrays will be donated, each once.
  norms = {
    name: jax.tree.map(jnp.copy, norm) for name in ('key_norm', 'value_norm')
  }
  return {**layer, 'self_attention': layer['self_attention'] | norms}
