"""Encoder and decoder stacks; both return every H[0..L] as a value.

H[0] is the input of the first layer, H[l] the output of layer l.
Axis letters: B batch, S source, T target, D model width, K beam, G groups.
In one step of a search T is the K hypotheses of a sentence: they stand side by
side like positions, and the mask keeps them apart.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from fusion_jax import fusion
from fusion_jax.config import ModelConfig
from fusion_jax.layers.ablation_masks import masks_of
from fusion_jax.layers.caches import CacheCursor, KeyValue
from fusion_jax.layers.context import Context
from fusion_jax.layers.layers import FeedForward, Residual, layer_norm

Layers = tuple[Float[Array, 'B T D'], ...]

# What the backward pass finds of a layer, by `model.remat_policy`.
_keep = jax.checkpoint_policies
_POLICIES = {
  'nothing': _keep.nothing_saveable,
  'dots': _keep.dots_saveable,
  'dots_without_batch': _keep.dots_with_no_batch_dims_saveable,
}

# Of every decoder layer: one each, or stacked with scan_layers.
Memories = tuple[KeyValue, ...] | KeyValue


class StackOutput(NamedTuple):
  """What a stack gives.

  features: what follows reads; one for each decoder layer after an encoder
    with transparent attention, one a group after a decoder of groups.
  layers: H[0..L], before any final norm.
  log_weights: log psi of the decoder's groups, float32; None without groups.
  """

  features: Float[Array, '*G M T D']
  layers: Layers
  log_weights: Float[Array, ' G'] | None = None


def _scale(module: nn.Module, config: ModelConfig) -> Float[Array, ''] | None:
  """The weight of a layer's sublayers with norm='rezero'."""
  if config.norm != 'rezero':
    return None
  init = nn.with_logical_partitioning(nn.initializers.zeros_init(), ())
  return module.param('residual_scale', init, ())


class EncoderLayer(nn.Module):
  """Self-attention, then feed-forward."""

  config: ModelConfig
  index: int = 1

  def setup(self):
    config = self.config
    self.self_attention = fusion.self_attention(config, 'encoder', self.index)
    self.self_attention_residual = Residual(config)
    self.feed_forward = FeedForward(config)
    self.feed_forward_residual = Residual(config)
    self.scale = _scale(self, config)

  def __call__(
    self,
    x: Float[Array, 'B S D'],
    layers: Layers,
    context: Context,
    memory: None = None,
  ) -> Float[Array, 'B S D']:
    """One layer.

    Args:
      x: its input.
      layers: H[0..l-1], for attentions that read more than x.
      context: of the pass.
      memory: None; the decoder's layers have one.

    Returns:
      Its output.
    """
    del memory
    deterministic = context.deterministic
    h = self.self_attention_residual.before(x)
    y = self.self_attention.attend(x, h, layers, context)
    x = self.self_attention.residual_input(x, h)
    x = self.self_attention_residual.after(x, y, deterministic, self.scale)
    y = self.feed_forward(self.feed_forward_residual.before(x), deterministic)
    return self.feed_forward_residual.after(x, y, deterministic, self.scale)


class DecoderLayer(nn.Module):
  """Self-attention, attention over the memory, feed-forward."""

  config: ModelConfig
  index: int = 1

  def setup(self):
    config = self.config
    self.self_attention = fusion.self_attention(config, 'decoder', self.index)
    self.self_attention_residual = Residual(config)
    self.cross_attention = fusion.cross_attention(config)
    self.cross_attention_residual = Residual(config)
    self.feed_forward = FeedForward(config)
    self.feed_forward_residual = Residual(config)
    self.scale = _scale(self, config)

  def memory(
    self,
    features: Float[Array, 'B S D'],
    embedding: Float[Array, 'B S D'],
    tokens: Bool[Array, 'B S'],
  ) -> KeyValue:
    """What this layer's cross-attention reads, computed once a sentence."""
    return self.cross_attention.memory(features, embedding, tokens)

  def __call__(
    self,
    x: Float[Array, 'B T D'],
    layers: Layers,
    context: Context,
    memory: KeyValue,
  ) -> Float[Array, 'B T D']:
    """One layer, for all positions or for one with caches.

    Args:
      x: all positions of B sentences, or the newest position of each of K
        hypotheses of B sentences (T = K).
      layers: H[0..l-1], for attentions that read more than x.
      context: of the pass.
      memory: keys and values of the source.

    Returns:
      The layer's output.
    """
    deterministic = context.deterministic
    h = self.self_attention_residual.before(x)
    y = self.self_attention.attend(x, h, layers, context)
    x = self.self_attention.residual_input(x, h)
    x = self.self_attention_residual.after(x, y, deterministic, self.scale)

    h = self.cross_attention_residual.before(x)
    y = self.cross_attention(
      h, memory, context.memory_mask, context.deterministic
    )
    x = self.cross_attention.residual_input(x, h)
    x = self.cross_attention_residual.after(x, y, deterministic, self.scale)

    y = self.feed_forward(self.feed_forward_residual.before(x), deterministic)
    return self.feed_forward_residual.after(x, y, deterministic, self.scale)


class _Stack(nn.Module):
  """Layers, what connects them, and what is read out of them.

  Attributes:
    config: of the model.
    layer_embedding: the table of Wang et al. (2018), Eq. 4, if any.
  """

  config: ModelConfig
  layer_embedding: nn.Module | None = None

  side = 'encoder'
  layer_class = EncoderLayer

  def setup(self):
    config, side = self.config, self.side
    if config.scan_layers:
      self.layers = self.layer_class(config)
    else:
      self.layer = [
        self.layer_class(config, index + 1)
        for index in range(config.layers(side))
      ]
    self.connection = fusion.connection(config, side)
    self.input_norms = fusion.input_norms(config, side)
    self.read_out = fusion.read_out(config, side, self.layer_embedding)
    self.prediction = fusion.prediction(config, side)
    self.opening = fusion.openings(config, side)
    if config.norm == 'pre':
      self.final_norm = layer_norm(config)

  def _run(
    self,
    x: Float[Array, 'B T D'],
    context: Context,
    memories: Any,
  ) -> StackOutput:
    """All layers, then the read-out."""
    run = self._scan if self.config.scan_layers else self._loop
    context = dataclasses.replace(context, keep=masks_of(self))
    return self._read(*run(x, context, memories), context)

  def _loop(
    self, x: Float[Array, 'B T D'], context: Context, memories: Any
  ) -> tuple[Layers, Float[Array, 'B T D']]:
    """H[0..L] and what the connection makes of them."""
    layers, carried = (x,), ()
    for index, layer in enumerate(self.layer[: self._depth(context)]):
      h, carried = self._layer_input(layers, carried, context)
      y = self._one(layer, h, layers, context, memories[index])
      if context.keep is not None:
        y = context.keep.layer(index, h, y)
      output = self.connection.layer_output(context.read(layers), y)
      layers = (*layers, self._opened(f'output_{index + 1}', y, output))
    return layers, self._layer_input(layers, carried, context)[0]

  def _layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[Float[Array, 'B T D'], tuple[Any, ...]]:
    h, carried = self.connection.layer_input(layers, carried, context)
    if len(layers) > 1:
      h = self._opened(f'input_{len(layers)}', layers[-1], h)
    return h, carried

  def _opened(
    self, place: str, plain: Float[Array, '...'], fused: Float[Array, '...']
  ) -> Float[Array, '...']:
    """What the plain model has, and as much of the fusion as is open.

    A connection that fuses nothing at a place gives back the same array.
    """
    if not self.opening or fused is plain:
      return fused
    return self.opening[place](plain, fused)

  def _depth(self, context: Context) -> int:
    """How many layers are run: fewer where no group reads the others."""
    if self.prediction is None or self._is_whole(context):
      return len(self.layer)
    return fusion.inference_depth(self.config)

  def _is_whole(self, context: Context) -> bool:
    """Whether all groups predict: in training, and for the parameters."""
    return self.is_initializing() or not context.deterministic

  def _one(
    self,
    layer: nn.Module,
    x: Float[Array, 'B T D'],
    layers: Layers,
    context: Context,
    memory: Any,
  ) -> Float[Array, 'B T D']:
    if not self.config.remat or context.caches.decoding:
      return layer(x, layers, context, memory)

    def body(layer, x, layers, memory):
      part = dataclasses.replace(context, caches=CacheCursor())
      y = layer(x, layers, part, memory)
      return y, tuple(part.caches.seen)

    policy = _POLICIES[self.config.remat_policy]
    y, seen = nn.remat(body, policy=policy)(layer, x, layers, memory)
    context.caches.join(seen)
    return y

  def _scan(
    self, x: Float[Array, 'B T D'], context: Context, memories: Any
  ) -> tuple[Layers, Float[Array, 'B T D']]:
    """As `_loop`, where layers read the layer below; one is compiled."""
    embedding = x

    def body(layer, carry, scanned):
      x, below = carry
      memory, cache, index = scanned
      caches = context.caches.branch(None if cache is None else (cache,))
      part = dataclasses.replace(context, caches=caches)
      y = layer(x, (embedding, below, x), part, memory)
      if context.keep is not None:
        y = context.keep.layer(index, x, y)
      return (y, x), (y, caches.seen[0])

    if self.config.remat and not context.caches.decoding:
      policy = _POLICIES[self.config.remat_policy]
      body = nn.remat(body, prevent_cse=False, policy=policy)
    count = self.config.layers(self.side)
    scan = _scanned(body, count)
    cache = context.caches.take()
    indices = None if context.keep is None else jnp.arange(count)
    (x, _), (outputs, seen) = scan(
      self.layers, (x, x), (memories, cache, indices)
    )
    context.caches.join((seen,))
    layers = (embedding, *outputs)
    return layers, self._layer_input(layers, (), context)[0]

  def _read(
    self, layers: Layers, output: Float[Array, 'B T D'], context: Context
  ) -> StackOutput:
    features, log_weights = output, None
    if self.read_out is not None:
      fused = context.read(self.input_norms(layers))
      features = self.read_out(fused, context)
    elif self.prediction is not None:
      fused = context.read(self.input_norms(layers))
      features, log_weights = self.prediction(fused, context)
      if context.keep is not None:
        log_weights = context.keep.log_weights(log_weights)
    if self.read_out is not None or self.prediction is not None:
      # The norm at the end makes the two the same with pre-norm.
      top = fused[-1] if self.config.norm == 'pre' else output
      features = self._opened('features', top, features)
    if self.config.norm == 'pre':
      features = self.final_norm(features)
    return StackOutput(features, layers, log_weights)


class Encoder(_Stack):
  """encoder_layers layers, their fusion and, with norm='pre', a final norm."""

  def __call__(self, x: Float[Array, 'B S D'], context: Context) -> StackOutput:
    """H[0] -> features and H[0..L]."""
    memories = None if self.config.scan_layers else [None] * len(self.layer)
    return self._run(x, context, memories)


class Decoder(_Stack):
  """decoder_layers layers, their fusion and, with norm='pre', a final norm."""

  side = 'decoder'
  layer_class = DecoderLayer

  def memories(
    self, encoded: StackOutput, mask: Bool[Array, 'B 1 1 S']
  ) -> Memories:
    """Keys and values of the source for every layer.

    Args:
      encoded: of the encoder.
      mask: True at source tokens.

    Returns:
      One for each layer; stacked, [L, B, N, S, H], with scan_layers.
    """
    features, embedding = encoded.features, encoded.layers[0]
    tokens = mask[:, 0, 0]
    each = features.ndim == embedding.ndim + 1
    if not self.config.scan_layers:
      return tuple(
        layer.memory(features[index] if each else features, embedding, tokens)
        for index, layer in enumerate(self.layer)
      )

    def body(layer, carry, own):
      return carry, layer.memory(own if each else features, embedding, tokens)

    scan = _scanned(body, self.config.decoder_layers)
    return scan(self.layers, (), features if each else None)[1]

  def __call__(
    self, x: Float[Array, 'B T D'], context: Context, memories: Memories
  ) -> StackOutput:
    """All positions at once, or one position with caches.

    Args:
      x: H[0], as in `DecoderLayer`.
      context: of the pass.
      memories: of the method of that name.

    Returns:
      features and H[0..L].
    """
    output = self._run(x, context, memories)
    if output.log_weights is None or self._is_whole(context):
      return output
    kept = fusion.inference_groups(
      self.config, output.features, output.log_weights
    )
    return output._replace(features=kept[0], log_weights=kept[1])


def _scanned(body: Callable, layers: int) -> Callable:
  return nn.scan(
    body,
    variable_axes={'params': 0, 'telemetry': 0, 'attention': 0, 'views': 0},
    split_rngs={'params': True, 'dropout': True},
    length=layers,
    metadata_params={nn.PARTITION_NAME: 'layers'},
  )
