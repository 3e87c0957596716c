"""Encoder and decoder stacks; both return every H[0..L] as a value.

H[0] is the input of the first layer, H[l] the output of layer l.

Axis letters: B batch, S source, T target, D model width, K beam, G groups, J
layers of the decoder, W one memory for keys and one for values.

In one step of a search T is the K hypotheses of a sentence: they stand side by
side like positions, and the mask keeps them apart.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.fusion import SUBLAYERS
from fusion_jax.fusion import plugs
from fusion_jax.fusion.inputs import LayerConnection
from fusion_jax.fusion.mixture import keep_groups
from fusion_jax.fusion.scheme import predictions_of, scheme_of, source_of
from fusion_jax.layers.attention import query_of, residual_of
from fusion_jax.layers.context import (
  Cache,
  Context,
  KeyValue,
  Layers,
  States,
  masks_of,
  with_values,
)
from fusion_jax.layers.dense import FeedForward, parameter
from fusion_jax.layers.residual import Residual, layer_norm

# What the forward pass keeps of a layer for the backward pass, by
# `model.remat_policy`.
_keep = jax.checkpoint_policies
_POLICIES = {
  'nothing': _keep.nothing_saveable,
  'dots': _keep.dots_saveable,
  'dots_without_batch': _keep.dots_with_no_batch_dims_saveable,
}


class Memories(NamedTuple):
  """Keys and values of the source.

  Attributes:
    layers: One for each decoder layer, or stacked with scan_layers.
    surface: Those of the prediction from the embeddings, if there is one.
  """

  layers: tuple[Cache, ...] | KeyValue
  surface: KeyValue | None = None


class StackOutput(NamedTuple):
  """Output of a stack.

  Attributes:
    features: Output for what follows the stack; one for each decoder layer
      after an encoder with transparent attention, or with memories of MUDD, two
      where these are of keys and of values; and one for each group after a
      decoder with groups.
    layers: H[0..L], before any final norm.
    log_weights: Log weights log psi of the decoder's groups, float32, the same
      everywhere or of every position; None without groups.
    embeddings: Embeddings of the source for a decoder that predicts from them;
      None for others.
  """

  features: Float[Array, '*G M T D']
  layers: Layers
  log_weights: Float[Array, ' G'] | Float[Array, 'G M T'] | None = None
  embeddings: States | None = None


def _scale(module: nn.Module, config: ModelConfig) -> Float[Array, ''] | None:
  """Return the weight of a layer's sublayers with norm='rezero'."""
  if config.norm != 'rezero':
    return None
  zeros = nn.initializers.zeros_init()
  return parameter(module, 'residual_scale', zeros, (), ())


class Layer(nn.Module):
  """Layer: self-attention, in a decoder attention to the memory, feed-forward.

  Attributes:
    config: Model configuration.
    side: Side of the stack.
    index: Number of the layer, counted from 1.
  """

  config: ModelConfig
  side: Side
  index: int = 1

  def setup(self):
    config, side = self.config, self.side
    residual, count = scheme_of(config, side).residual, SUBLAYERS[side]
    residuals = [
      residual.module(config, side, (self.index - 1) * count + number)
      for number in range(count)
    ]
    self.self_attention = plugs.self_attention(config, side, self.index)
    self.self_attention_residual = residuals[0]
    if side == 'decoder':
      self.cross_attention = plugs.cross_attention(config, self.index)
      self.cross_attention_residual = residuals[1]
    self.feed_forward = FeedForward(config)
    self.feed_forward_residual = residuals[-1]
    self.scale = _scale(self, config)

  def memory(
    self,
    features: Float[Array, '*W B S D'],
    embedding: Float[Array, 'B S D'],
    tokens: Bool[Array, 'B S'],
  ) -> Cache:
    """Return the input of this layer's cross-attention, once per sentence."""
    return self.cross_attention.memory(features, embedding, tokens)

  def __call__(
    self, x: Any, layers: Layers, context: Context, memory: KeyValue | None
  ) -> Any:
    """Apply the layer to all positions, or to one position with caches.

    Args:
      x: The state of the stack, or a `LayerInput`: at all positions of B
        sentences, or at the newest position of each of K hypotheses (T = K).
      layers: H[0..l-1], for attentions that read more than x.
      context: Context of the pass.
      memory: Keys and values of the source; None in an encoder.

    Returns:
      The state after the layer.
    """

    def self_attend(h):
      return self.self_attention.attend(x, h, layers, context)

    y = self._sublayer(
      self.self_attention_residual,
      x,
      self_attend,
      context,
      self.self_attention.residual_from_norm,
    )
    if self.side == 'decoder':
      mask, residual = context.memory_mask, self.cross_attention_residual
      assert mask is not None, 'a decoder reads a memory'
      assert memory is not None
      attend = functools.partial(
        self.cross_attention,
        source=memory,
        mask=mask,
        deterministic=context.deterministic,
      )
      from_norm = self.cross_attention.residual_from_norm
      y = self._sublayer(residual, y, attend, context, from_norm)
    feed = functools.partial(
      self.feed_forward, deterministic=context.deterministic
    )
    return self._sublayer(self.feed_forward_residual, y, feed, context)

  def _sublayer(
    self,
    residual: Residual,
    x: Any,
    f: Callable[..., Array],
    context: Context,
    from_norm: bool = False,
  ) -> Any:
    """Return the state after a sublayer f."""
    h, kept = residual.before(query_of(x), context)
    y = f(h)
    start = h if from_norm else residual_of(x)
    return residual.after(start, y, context, kept, self.scale)


class _Stack(nn.Module):
  """Stack of layers with their layer connection and layer aggregation.

  Attributes:
    layer_embedding: Table of Wang et al. (2018), Eq. 4, if any.
  """

  config: ModelConfig
  layer_embedding: nn.Module | None = None

  side: ClassVar[Side] = 'encoder'

  def setup(self):
    config, side = self.config, self.side
    if config.scan_layers:
      self.layers = Layer(config, side)
    else:
      numbers = range(1, config.layers(side) + 1)
      self.layer = [Layer(config, side, index) for index in numbers]
    scheme = scheme_of(config, side)
    connection = plugs.module_at('layer connection', config, side)
    self.connection = connection or LayerConnection(config, side)
    self.state = scheme.residual.state(config, side)
    self.state_read = scheme.residual.read(config, side)
    self.input_norms = plugs.input_norms(config, side)
    self.read_out = plugs.module_at(
      'layer aggregation', config, side, self.layer_embedding
    )
    prediction = plugs.module_at('prediction', config, side)
    self.prediction = None if scheme.reads_embeddings else prediction
    self.surface = prediction if scheme.reads_embeddings else None
    self.opening = plugs.openings(config, side)
    if config.norm == 'pre':
      self.final_norm = layer_norm(config)

  def _run(self, x: States, context: Context, memories: Any) -> StackOutput:
    """Apply all layers, then the layer aggregation."""
    run = self._scan if self.config.scan_layers else self._loop
    context = dataclasses.replace(context, keep=masks_of(self))
    return self._read(*run(x, context, memories), context)

  def _loop(
    self, x: States, context: Context, memories: Any
  ) -> tuple[Layers, Float[Array, '*J B T D']]:
    """Return H[0..L], and what the layer connection makes of them."""
    layers: Layers = (x,)
    state = self.state.open(x)
    carried: tuple[Any, ...] = ()
    for index, layer in enumerate(self.layer[: self._depth(context)]):
      h, carried = self._layer_input(layers, carried, context)
      h = h if self.state.is_layer else state
      state = self._one(layer, h, layers, context, memories[index])
      if context.keep is not None:
        kept = context.keep.layer(index)
        state = self.state.keep(kept, residual_of(h), state)
      y = self.state.close(state)
      output = self.connection.layer_output(context.read(layers), y)
      layers = (*layers, self._opened(f'output_{index + 1}', y, output))
    return layers, self._output(layers, carried, state, context)

  def _output(
    self, layers: Layers, carried: tuple[Any, ...], state: Any, context: Context
  ) -> Float[Array, '*J B T D']:
    """Return what the layer connection, or the state, gives after layer L."""
    if self.state_read is not None:
      return self.state_read(state, context)
    return self._layer_input(layers, carried, context)[0]

  def _layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[Any, tuple[Any, ...]]:
    h, carried = self.connection.layer_input(layers, carried, context)
    if len(layers) > 1:
      h = self._opened(f'input_{len(layers)}', layers[-1], h)
    return h, carried

  def _opened(self, place: str, plain: Float[Array, '...'], fused: Any) -> Any:
    """Mix the plain array with the fused one by the opening of the place.

    A connection that fuses nothing at a place returns the same array.
    """
    if not self.opening or fused is plain:
      return fused
    return self.opening[place](plain, fused)

  def _depth(self, context: Context) -> int:
    """Return how many layers to run: fewer where no group reads the others."""
    mixed = None if self.prediction is None else predictions_of(self.config)
    if mixed is None or self._is_whole(context):
      return len(self.layer)
    return mixed.layers

  def _is_whole(self, context: Context) -> bool:
    """Return whether all groups predict: in training, and in initialisation."""
    return self.is_initializing() or not context.deterministic

  def _one(
    self,
    layer: nn.Module,
    x: Any,
    layers: Layers,
    context: Context,
    memory: Any,
  ) -> Any:
    if not self.config.remat or context.caches.decoding:
      return layer(x, layers, context, memory)

    def body(layer, x, layers, memory):
      part = dataclasses.replace(context, caches=context.caches.part())
      y = layer(x, layers, part, memory)
      return y, tuple(part.caches.seen)

    policy = _POLICIES[self.config.remat_policy]
    y, seen = nn.remat(body, policy=policy)(layer, x, layers, memory)
    context.caches.join(seen)
    return y

  def _scan(
    self, x: States, context: Context, memories: Any
  ) -> tuple[Layers, Float[Array, '*J B T D']]:
    """Do the same as `_loop` where layers read the layer below; compile one."""
    embedding = x

    def body(layer, carry, scanned):
      state, below = carry
      x = self.state.close(state)
      memory, cache, index = scanned
      caches = context.caches.branch(None if cache is None else (cache,))
      part = dataclasses.replace(context, caches=caches)
      y = layer(state, (embedding, below, x), part, memory)
      if context.keep is not None:
        y = self.state.keep(context.keep.layer(index), state, y)
      return (y, x), (self.state.close(y), caches.seen[0])

    if self.config.remat and not context.caches.decoding:
      policy = _POLICIES[self.config.remat_policy]
      body = nn.remat(body, prevent_cse=False, policy=policy)
    count = self.config.layers(self.side)
    scan = _scanned(body, count)
    cache = context.caches.take()
    indices = None if context.keep is None else jnp.arange(count)
    (state, _), (outputs, seen) = scan(
      self.layers, (self.state.open(x), x), (memories, cache, indices)
    )
    context.caches.join((seen,))
    layers = (embedding, *outputs)
    return layers, self._output(layers, (), state, context)

  def _read(
    self, layers: Layers, output: Float[Array, '*J B T D'], context: Context
  ) -> StackOutput:
    features, log_weights = output, None
    if self.read_out is not None:
      fused = self._inputs(layers, context)
      features = self.read_out(fused, context)
    elif self.prediction is not None:
      fused = self._inputs(layers, context)
      features, log_weights = self.prediction(fused, context)
      if context.keep is not None:
        log_weights = context.keep.log_weights(log_weights)
    if self.read_out is not None or self.prediction is not None:
      # With pre-norm the final norm makes the plain output and fused[-1] the
      # same.
      top = fused[-1] if self.config.norm == 'pre' else output
      features = self._opened('features', top, features)
    if self.config.norm == 'pre':
      features = self.final_norm(features)
    return StackOutput(features, layers, log_weights)

  def _inputs(self, layers: Layers, context: Context) -> Layers:
    """Return what a layer aggregation or a prediction reads."""
    assert self.input_norms is not None
    return context.read(self.input_norms(layers))


class Encoder(_Stack):
  """Encoder stack with its fusion.

  It has encoder_layers layers and, with norm='pre', a final norm.
  """

  def __call__(self, x: Float[Array, 'B S D'], context: Context) -> StackOutput:
    """Return the features and H[0..L] from H[0]."""
    memories = None if self.config.scan_layers else [None] * len(self.layer)
    return self._run(x, context, memories)


class Decoder(_Stack):
  """Decoder stack with its fusion.

  It has decoder_layers layers and, with norm='pre', a final norm.
  """

  side: ClassVar[Side] = 'decoder'

  def memories(
    self, encoded: StackOutput, mask: Bool[Array, 'B 1 1 S']
  ) -> Memories:
    """Return keys and values of the source for every layer.

    A layer that reads the values of layer 1 has keys alone. With scan_layers
    they are stacked, [L, B, N, S, H]. The mask is True at source tokens.
    """
    return Memories(self._of_layers(encoded, mask), self._of_surface(encoded))

  def _of_surface(self, encoded: StackOutput) -> KeyValue | None:
    if self.surface is None:
      return None
    features, embeddings = encoded.features, encoded.embeddings
    assert embeddings is not None, 'the encoder gives what is read'
    # Of several features, those that the top layer reads.
    top = features if features.ndim == embeddings.ndim else features[-1]
    return self.surface.memory(top, embeddings)

  def _of_layers(
    self, encoded: StackOutput, mask: Bool[Array, 'B 1 1 S']
  ) -> tuple[Cache, ...] | KeyValue:
    features, embedding = encoded.features, encoded.layers[0]
    tokens = mask[:, 0, 0]
    one_per_layer = features.ndim > embedding.ndim
    if not self.config.scan_layers:
      memories: tuple[Any, ...] = tuple(
        layer.memory(
          features[index] if one_per_layer else features, embedding, tokens
        )
        for index, layer in enumerate(self.layer)
      )
      if not source_of(self.config, 'decoder').mixes_memory(self.config):
        return memories
      return tuple(
        layer.cross_attention.mixed(memory, memories[0].values)
        for layer, memory in zip(self.layer, memories, strict=True)
      )

    def body(layer, carry, one):
      return carry, layer.memory(
        one if one_per_layer else features, embedding, tokens
      )

    scan = _scanned(body, self.config.decoder_layers)
    return scan(self.layers, (), features if one_per_layer else None)[1]

  def __call__(
    self, x: States, context: Context, memories: Memories
  ) -> StackOutput:
    """Return features and H[0..L] of all positions, or of one with caches."""
    of_layers = memories.layers
    if not isinstance(of_layers, KeyValue):
      first = of_layers[0]
      of_layers = tuple(with_values(cache, first) for cache in of_layers)
    output = self._run(x, context, of_layers)
    if memories.surface is not None:
      output = self._with_surface(output, memories.surface, context)
    if output.log_weights is None or self._is_whole(context):
      return output
    mixed = predictions_of(self.config)
    assert mixed is not None, 'a scheme predicts'
    features, weights = output.features, output.log_weights
    kept = keep_groups(features, weights, *mixed.kept)
    return output._replace(features=kept[0], log_weights=kept[1])

  def _with_surface(
    self, output: StackOutput, surface: KeyValue, context: Context
  ) -> StackOutput:
    assert self.surface is not None, 'what reads that memory'
    features, log_weights = self.surface(output.features, surface, context)
    keep = masks_of(self)
    if keep is not None and log_weights is not None:
      log_weights = keep.log_weights(log_weights)
    features = self._opened('features', output.features, features)
    return output._replace(features=features, log_weights=log_weights)


def _scanned(body: Callable, layers: int) -> Callable:
  return nn.scan(
    body,
    variable_axes={'params': 0, 'telemetry': 0, 'attention': 0, 'views': 0},
    split_rngs={'params': True, 'dropout': True},
    length=layers,
    metadata_params={nn.PARTITION_NAME: 'layers'},
  )
