"""Multi-head attention: the pure function and the module.

Axis letters: B batch, T queries, S keys, D model width, N heads, H head width.
Masks are True where a key may be attended to.
"""

import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.config import ModelConfig
from fusion_jax.layers.context import Cache, Context, KeyValue, Layers, States
from fusion_jax.layers.dense import Dense
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.sow import sow
from fusion_jax.parallel.mesh import over_heads

# Value of masked logits. It is finite, so that a row without any key stays
# finite.
_MASKED = -1e9


class LayerInput(NamedTuple):
  """Inputs of a layer that reads four sums; sublayers add to the residual."""

  residual: States
  query: States
  key: States
  value: States


def residual_of(x: Any) -> Any:
  """Return what the sublayers of a layer add to, of its input."""
  return x.residual if isinstance(x, LayerInput) else x


def query_of(x: Any) -> Any:
  """Return what the query of a layer's self-attention reads, of its input."""
  return x.query if isinstance(x, LayerInput) else x


def padding_mask(
  lengths: Int[Array, '*B'], size: int
) -> Bool[Array, '*B 1 1 {size}']:
  """Return a mask that is True at the first `lengths` of `size` keys."""
  return (jnp.arange(size) < lengths[..., None])[..., None, None, :]


def causal_mask(size: int) -> Bool[Array, '1 1 {size} {size}']:
  """Return a mask that is True where the key is not later than the query."""
  position = jnp.arange(size)
  return (position[:, None] >= position[None, :])[None, None]


def rows_mask(
  rows: Int[Array, 'B K P'], position: Int[Array, '']
) -> Bool[Array, 'B 1 K P*K']:
  """Return which keys of a cache belong to each hypothesis, up to a position.

  The cache of a sentence has K keys for each position, one in each row, and is
  ordered by position. `rows` has the row that holds each position.
  """
  batch, beam, size = rows.shape
  own = rows[..., None] == jnp.arange(beam)
  seen = (jnp.arange(size) <= position)[:, None]
  return (own & seen).reshape(batch, 1, beam, size * beam)


def split_heads(x: States, heads: int) -> Float[Array, 'B N T H']:
  """Give each of N heads its part of the width."""
  return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def join_heads(x: Float[Array, 'B N T H']) -> States:
  """Invert `split_heads`."""
  return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def key_value(
  keys: Float[Array, 'B S D'], values: Float[Array, 'B S D'], heads: int
) -> KeyValue:
  """Return projected keys and values, split into heads."""
  return KeyValue(
    split_heads(keys, heads).swapaxes(-1, -2), split_heads(values, heads)
  )


def attention_weights(
  query: Float[Array, 'B N T H'],
  keys: Float[Array, 'B N H S'],
  mask: Bool[Array, '#B #N #T S'],
) -> Float[Array, 'B N T S']:
  """Return softmax(Q K^T / sqrt(H)), float32; Vaswani et al. (2017), Eq. 1.

  The mask is True where a key may be attended to; a row whose keys are all
  masked is uniform.
  """
  logits = jnp.einsum(
    'BNTH,BNHS->BNTS', query, keys, preferred_element_type=jnp.float32
  )
  logits = jnp.where(mask, logits / query.shape[-1] ** 0.5, _MASKED)
  return jax.nn.softmax(logits, axis=-1)


def kernel_attention(
  query: Float[Array, 'B N T H'],
  source: KeyValue,
  mask: Bool[Array, '#B 1 #T S'],
  implementation: Literal['xla', 'cudnn'],
) -> Float[Array, 'B N T H']:
  """Return softmax(Q K^T / sqrt(H)) V by `jax.nn.dot_product_attention`.

  Vaswani et al. (2017), Eq. 1, without weights that a caller could see.

  Args:
    mask: Mask, True where a key may be attended to.
    implementation: Who computes it; 'cudnn' keeps no weights in memory either.

  Returns:
    The attended values, in the dtype of the queries.
  """
  queries, keys = query.shape[2], source.keys.shape[3]
  attend = functools.partial(
    jax.nn.dot_product_attention, implementation=implementation
  )
  attended = over_heads(attend)(
    query.swapaxes(1, 2),
    source.keys.transpose(0, 3, 1, 2),
    source.values.swapaxes(1, 2),
    mask=jnp.broadcast_to(mask, (*mask.shape[:2], queries, keys)),
  )
  return attended.swapaxes(1, 2)


class MultiHeadAttention(nn.Module):
  """Multi-head attention of Vaswani et al. (2017), section 3.2.2.

  It is Concat(head_1..head_N) W^O.
  """

  config: ModelConfig

  def setup(self):
    inner = ('embed', 'heads')
    self.query = self._dense(inner)
    self.key = self._dense(inner)
    self.value = self._dense(inner)
    self.out = self._dense(inner[::-1])
    self.dropout = Dropout(
      self.config.attention_dropout, self.config.dropout_generator
    )

  def _dense(self, axes: tuple[str, str]) -> Dense:
    config = self.config
    return Dense(config, config.width, axes, config.attention_bias)

  def keys_values(self, source: Float[Array, 'B S D']) -> KeyValue:
    """Project what is attended to; every position is independent."""
    return key_value(self.key(source), self.value(source), self.config.heads)

  def attend(
    self, x: Any, h: States, layers: Layers, context: Context
  ) -> States:
    """Self-attend over all positions of a pass and those before it.

    Args:
      x: Input of the layer, an array or a `LayerInput`.
      h: The same after the norm before attention, if any.
      layers: H[0..l-1], for attentions that read more than h.

    Returns:
      The output of the sublayer.
    """
    del x, layers
    seen = context.caches.extend(self.keys_values(h))
    return self(h, seen, context.mask, context.deterministic)

  def memory(
    self,
    features: Float[Array, '*W B S D'],
    embedding: Float[Array, 'B S D'],
    tokens: Bool[Array, 'B S'] | None = None,
  ) -> Cache:
    """Return what cross-attention reads, computed once per sentence.

    Args:
      features: Features of the encoder; with a first axis of 2 those of keys
        and those of values.
      embedding: H[0] of the encoder, for attentions that read it too.
      tokens: Mask for telemetry, True at source tokens; None: all are.

    Returns:
      Keys and values of every source position.
    """
    del embedding, tokens
    if features.ndim == 3:
      return self.keys_values(features)
    of_keys, of_values = features
    keys, values = self.key(of_keys), self.value(of_values)
    return key_value(keys, values, self.config.heads)

  @nn.nowrap
  def from_plain(
    self,
    own: Mapping[str, Any],
    plain: Mapping[str, Any],
    residual: Mapping[str, Any],
  ) -> Mapping[str, Any]:
    """Return parameters that compute what a trained plain attention computes.

    Args:
      own: Parameters of this attention; those that the plain one has too are
        the trained ones already.
      plain: Parameters of a trained `MultiHeadAttention` in its place.
      residual: Parameters of the trained residual around it.

    Returns:
      The parameters to start from with start='baseline'.
    """
    del plain, residual
    return own

  @property
  def residual_from_norm(self) -> bool:
    """Whether its output is added to what the norm before it gives."""
    return False

  def __call__(
    self,
    x: States,
    source: KeyValue,
    mask: Bool[Array, '#B #N #T S'],
    deterministic: bool,
  ) -> States:
    """Attend from every position of x to `source`.

    Args:
      mask: Mask, True where a key may be attended to.

    Returns:
      The attended values after the output projection, in x's dtype.
    """
    query = split_heads(self.query(x), self.config.heads)
    implementation = self.config.attention_implementation
    if implementation == 'plain' or deterministic:
      weights = attention_weights(query, source.keys, mask)
      sow(self, 'attention', 'weights', weights)
      weights = self.dropout(weights.astype(x.dtype), deterministic)
      heads = jnp.einsum('BNTS,BNSH->BNTH', weights, source.values)
    else:
      heads = kernel_attention(query, source, mask, implementation)
    return self.out(join_heads(heads))
