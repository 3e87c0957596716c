"""Streams: a layer that reads one sum for its residual and others to attend.

Axis letters: M batch, T positions, D model width.
"""

import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
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
