"""Lexical shortcuts: attention whose keys and values also come from H[0].

Emelin et al. (WMT 2019), Eq. 5-14. Element-wise gates mix two projections of
the same position, one of an earlier layer and one of the layer's input. Every
position is mixed independently, so that decoding caches keys and values that
are mixed already.

Axis letters: B batch, M rows of a pass, T positions, S source positions, D
model width.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from fusion_jax.config import ModelConfig, Side, SideConfig
from fusion_jax.config.section import section
from fusion_jax.errors import require
from fusion_jax.fusion.inputs import Opening
from fusion_jax.fusion.scheme import AttentionSource, scheme_of
from fusion_jax.layers.attention import MultiHeadAttention, key_value
from fusion_jax.layers.context import (
  Context,
  KeyValue,
  Layers,
  States,
  token_mean,
)
from fusion_jax.layers.dense import (
  Dense,
  Initializer,
  kernel_initializer,
  parameter,
)
from fusion_jax.layers.residual import plain_norm
from fusion_jax.layers.sow import sow


@section('model.*.attention_options')
class ShortcutOptions:
  """Lexical shortcuts into attention (Emelin 2019, Eq. 5-14)."""

  source: Literal['lexical', 'non_lexical'] = 'lexical'
  """Where shortcuts come from; 'lexical': H[0]; 'non_lexical': H[l - 2]."""

  where: Literal['self', 'cross', 'both'] = 'self'
  """Attentions that have shortcuts."""

  feature_fusion: bool = False
  """Project both sources together (Eq. 13-14)."""

  source_norm: Literal['auto', 'none'] = 'auto'
  """Norm without scale and offset on the source H[l - 2] of non-lexical
  shortcuts; 'auto': with pre-norm, whose states no norm has seen."""

  author_compat: bool = False
  """The variant of the released code: keys and values read what the norm has
  not seen, and the residual starts from what it has."""


_AXES = ('embed', 'heads')


def gate(
  shortcut: Float[Array, '*batch D'],
  hidden: Float[Array, '*batch D'],
  bias: Float[Array, ' D'],
) -> Float[Array, '*batch D']:
  """Return r = sigmoid(shortcut + hidden + bias), float32; Emelin, Eq. 5-12."""
  terms = (array.astype(jnp.float32) for array in (shortcut, hidden, bias))
  return jax.nn.sigmoid(functools.reduce(jnp.add, terms))


def fuse(
  gates: Float[Array, '*batch D'],
  shortcut: Float[Array, '*batch D'],
  hidden: Float[Array, '*batch D'],
) -> Float[Array, '*batch D']:
  """Return r * shortcut + (1 - r) * hidden; Emelin et al. (2019), Eq. 5-12.

  It is summed in float32 and returned in hidden's dtype. This form is exact at
  r = 0 and r = 1, unlike hidden + r * (shortcut - hidden).
  """
  mixed = gates * shortcut.astype(gates.dtype)
  mixed += (1 - gates) * hidden.astype(gates.dtype)
  return mixed.astype(hidden.dtype)


class ShortcutAttention(MultiHeadAttention):
  """Multi-head attention over gated keys and values.

  K' = r_K * K_S + (1 - r_K) * K_H, and V' likewise; Emelin et al. (2019), Eq.
  5-12. K_S and V_S are projections of E, and K_H and V_H of h. In
  self-attention E = H[0], or H[l - 2] for 'non_lexical' shortcuts, and h is the
  input after the norm. In cross-attention E = H[0] of the encoder and h is the
  encoder's output. With feature fusion [K_S, K_H] = concat(E, h) W, Eq. 13-14.

  The projections of E and those of the feature fusion have no bias. With
  start='baseline' the gates are multiplied by openings that start at 0.

  Telemetry: 'key_gate' and 'value_gate', the mean gates.
  Views: 'key_gate' and 'value_gate' [B, S, D], the gates of the positions read.
  """

  side: Side

  def setup(self):
    super().setup()
    config, options, width = self.config, self._options, self.config.width
    exact = config.side(self.side).start == 'baseline'
    if options.feature_fusion:
      start = _separate_start(config) if exact else None
      self.fused_key = Dense(config, 2 * width, _AXES, False, start)
      self.fused_value = Dense(config, 2 * width, _AXES, False, start)
    else:
      self.shortcut_key = Dense(config, width, _AXES, False)
      self.shortcut_value = Dense(config, width, _AXES, False)
    self.key_gate_bias = self._gate_bias('key_gate_bias')
    self.value_gate_bias = self._gate_bias('value_gate_bias')
    unseen = options.source == 'non_lexical' and config.norm == 'pre'
    auto = options.source_norm == 'auto' and not options.author_compat
    normed = unseen and auto
    self.source_norm = plain_norm(config) if normed else None
    if exact:
      self.key_opening = Opening(config)
      self.value_opening = Opening(config)

  @property
  def _options(self) -> ShortcutOptions:
    return self.config.side(self.side).attention_options

  def _gate_bias(self, name: str) -> Float[Array, ' D']:
    # Glorot's limit for a vector, with fan-in and fan-out D.
    limit = math.sqrt(3 / self.config.width)

    def init(key, shape):
      return jax.random.uniform(key, shape, minval=-limit, maxval=limit)

    return parameter(self, name, init, ('norm',), (self.config.width,))

  def attend(
    self, x: States, h: States, layers: Layers, context: Context
  ) -> States:
    """Attend with shortcuts; see `MultiHeadAttention.attend`."""
    shortcut = layers[0]
    if self._options.source == 'non_lexical' and len(layers) > 1:
      shortcut = layers[-2]
    if self.source_norm is not None:
      shortcut = self.source_norm(shortcut)
    hidden = x if self._options.author_compat else h
    seen = context.caches.extend(self._mix(shortcut, hidden, context.tokens))
    return self(h, seen, context.mask, context.deterministic)

  def memory(
    self,
    features: Float[Array, 'B S D'],
    embedding: Float[Array, 'B S D'],
    tokens: Bool[Array, 'B S'] | None = None,
  ) -> KeyValue:
    """Return the mixed memory; see `MultiHeadAttention.memory`."""
    return self._mix(embedding, features, tokens)

  @nn.nowrap
  def from_plain(
    self,
    own: Mapping[str, Any],
    plain: Mapping[str, Any],
    residual: Mapping[str, Any],
  ) -> Mapping[str, Any]:
    """Start the maps of feature fusion from those of a plain attention.

    The right half of W in concat(E, h) W becomes the plain map of h. The fused
    maps have no biases. The bias of the plain keys is dropped, because it adds
    the same to all logits of a query. The bias of the values moves into that of
    the output, because the attention weights sum to 1. See
    `MultiHeadAttention.from_plain`.
    """
    del residual
    if not self._options.feature_fusion:
      return own
    result = dict(own)
    for name in ('key', 'value'):
      kernel = own[f'fused_{name}']['kernel']
      half = kernel.shape[0] // 2
      started = kernel.at[half:, half:].set(plain[name]['kernel'])
      result[f'fused_{name}'] = {'kernel': started}
    out = dict(plain['out'])
    if 'bias' in out:
      out['bias'] = out['bias'] + plain['value']['bias'] @ out['kernel']
    return result | {'out': out}

  @property
  def residual_from_norm(self) -> bool:
    """Whether the residual starts as in the released code."""
    return self._options.author_compat

  def _mix(
    self,
    shortcut: Float[Array, 'B S D'],
    hidden: Float[Array, 'B S D'],
    tokens: Bool[Array, 'B S'] | None,
  ) -> KeyValue:
    """Return gated keys and values, and record the mean gates over tokens."""
    keys, values = self._project(shortcut, hidden)
    key_gates = gate(*keys, self.key_gate_bias)
    value_gates = gate(*values, self.value_gate_bias)
    for name, gates in ('key_gate', key_gates), ('value_gate', value_gates):
      sow(self, 'telemetry', name, token_mean(gates, tokens).mean())
      sow(self, 'views', name, gates)
    if self.config.side(self.side).start == 'baseline':
      key_gates *= self.key_opening.values()
      value_gates *= self.value_opening.values()
    return key_value(
      fuse(key_gates, *keys), fuse(value_gates, *values), self.config.heads
    )

  def _project(
    self, shortcut: Float[Array, 'B S D'], hidden: Float[Array, 'B S D']
  ) -> tuple[
    tuple[Float[Array, 'B S D'], Float[Array, 'B S D']],
    tuple[Float[Array, 'B S D'], Float[Array, 'B S D']],
  ]:
    """Return (K_S, K_H) and (V_S, V_H)."""
    if self._options.feature_fusion:
      both = jnp.concatenate([shortcut, hidden], axis=-1)
      (k, k_hidden), (v, v_hidden) = (
        jnp.split(project(both), 2, axis=-1)
        for project in (self.fused_key, self.fused_value)
      )
    else:
      k, k_hidden = self.shortcut_key(shortcut), self.key(hidden)
      v, v_hidden = self.shortcut_value(shortcut), self.value(hidden)
    return (k, k_hidden), (v, v_hidden)


def _separate_start(config: ModelConfig) -> Initializer:
  """Draw fresh values, with zeros where K_H and V_H would read E."""
  init = kernel_initializer(config)

  def start(key, shape):
    return init(key, shape).at[: shape[0] // 2, shape[1] // 2 :].set(0)

  return start


def _self_attention(
  config: ModelConfig, side: Side, index: int
) -> ShortcutAttention | None:
  where = config.side(side).attention_options.where
  return None if where == 'cross' else ShortcutAttention(config, side)


def _cross_attention(
  config: ModelConfig, index: int
) -> ShortcutAttention | None:
  where = config.decoder.attention_options.where
  return None if where == 'self' else ShortcutAttention(config, 'decoder')


def _check(config: ModelConfig, side: Side) -> None:
  chosen, path = config.side(side), f'model.{side}.attention_options'
  _check_place(chosen, path, side)
  _check_author_compat(chosen, path, config.norm)
  options = chosen.attention_options
  hidden = scheme_of(config, side).hides_layer_below(chosen.options)
  require(
    not (options.source == 'non_lexical' and hidden),
    f'{path}.source',
    "'non_lexical' reads the layer below the last, whose place "
    f'fusion={chosen.fusion!r} takes; choose one',
  )
  require(
    chosen.ways <= 1 or options.where == 'cross',
    f'model.{side}.attention',
    f"'shortcut' and fusion={chosen.fusion!r} with options.ways={chosen.ways} "
    'both replace the keys and values; choose one, or options.ways=1',
  )


def _check_place(chosen: SideConfig, path: str, side: Side) -> None:
  options = chosen.attention_options
  require(
    side == 'decoder' or options.where == 'self',
    f'{path}.where',
    f'{options.where!r} needs cross-attention, which the encoder lacks; '
    "'self' is right there",
  )
  require(
    options.source == 'lexical' or options.where == 'self',
    f'{path}.where',
    f"{options.where!r} reads the encoder's embeddings, which "
    "source='non_lexical' does not; use 'self' or source='lexical'",
  )


def _check_author_compat(chosen: SideConfig, path: str, norm: str) -> None:
  if not chosen.attention_options.author_compat:
    return
  field = f'{path}.author_compat'
  require(
    not chosen.owns_residual,
    field,
    'starts the residual from the normalised input, and with fusion='
    f'{chosen.fusion!r} the residual is not one array; choose one',
  )
  require(
    norm == 'pre',
    field,
    f'is about the norm before attention; model.norm={norm!r} has none',
  )
  require(
    chosen.start == 'fresh',
    field,
    'starts the residual from the normalised input, so that '
    "start='baseline' cannot be exact; choose one",
  )


SOURCE = AttentionSource(
  'shortcut',
  'Emelin et al. 2019, Eq. 5-14',
  ShortcutOptions,
  _self_attention,
  _cross_attention,
  _check,
  layers_alike=True,
)
