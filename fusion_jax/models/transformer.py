"""The encoder-decoder Transformer of Vaswani et al. (2017).

Axis letters: B batch, S source length, T target length, D model width, V target
vocabulary, K beam.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.config import ModelConfig
from fusion_jax.fusion import plugs
from fusion_jax.fusion.mixture import mixture_log_probabilities
from fusion_jax.fusion.scheme import predictions_of, scheme_of
from fusion_jax.layers.attention import causal_mask, padding_mask, rows_mask
from fusion_jax.layers.context import (
  Cache,
  CacheCursor,
  Context,
  Layers,
  States,
  empty,
)
from fusion_jax.layers.dense import (
  bias_initializer,
  kernel_initializer,
  parameter,
)
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.narrow import Matrix, product, rows_of
from fusion_jax.layers.positions import (
  segment_mask,
  segment_positions,
  sinusoids,
)
from fusion_jax.models.stack import Decoder, Encoder, Memories, StackOutput

# Nested dictionaries whose leaves are arrays, or what stands for each of them:
# its shape, its box with axis names, its gradient, or whether it is trained.
Parameters = Mapping[str, Any]


class OutputLayer(NamedTuple):
  """Output layer: logits = features table^T + bias, with an optional bias.

  The table is [V, D], or narrow in a search.
  """

  table: Any
  bias: Float[Array, ' V'] | None


class ModelOutput(NamedTuple):
  """Output of a pass with teacher forcing.

  Attributes:
    output: Output projection, which the loss applies.
    encoder_layers, decoder_layers: H[0..L] of each stack.
    encoder_features: What the decoder reads of the source; several tensors
      where its layers read different ones, see `StackOutput`.
    log_weights: Log weights log psi of the predictions, float32, the same
      everywhere or of every position; None where there is one.
  """

  features: Float[Array, '*G B T D']
  output: OutputLayer
  encoder_layers: tuple[Float[Array, 'B S D'], ...]
  decoder_layers: Layers
  encoder_features: Float[Array, '*G B S D']
  log_weights: Float[Array, ' G'] | Float[Array, 'G B T'] | None = None


class Memory(NamedTuple):
  """Values of the source that the decoder reads; one row for each sentence.

  Attributes:
    keys_values: Keys and values of every decoder layer, and of a prediction
      from the source's embeddings, see `Decoder.memories`.
    mask: Mask, True at source tokens.
  """

  keys_values: Memories
  mask: Bool[Array, 'B 1 1 S']


def shift_right(
  target: Int[Array, 'B T'],
  start_id: int,
  positions: Int[Array, 'B T'] | None = None,
) -> Int[Array, 'B T']:
  """Return the decoder's input: the start symbol, then all but the last token.

  With `positions`, those of tokens in their own segments, the start symbol
  stands at the first position of each segment.
  """
  shifted = jnp.pad(target, ((0, 0), (1, 0)), constant_values=start_id)[:, :-1]
  if positions is None:
    return shifted
  return jnp.where(positions == 0, start_id, shifted)


class Transformer(nn.Module):
  """Transformer: encoder, decoder, embeddings and output projection."""

  config: ModelConfig
  source_vocabulary: int
  target_vocabulary: int
  start_id: int

  def setup(self):
    config = self.config
    self.source_table = self._table('source_embedding', self.source_vocabulary)
    self.target_table = (
      self.source_table
      if config.ties_sides
      else self._table('target_embedding', self.target_vocabulary)
    )
    self.output_layer = self._output_layer()
    if config.positions == 'learned':
      self.source_positions = self._positions('source_positions')
      self.target_positions = self._positions('target_positions')
    self.layer_embedding = plugs.layer_embedding(config)
    self.encoder = Encoder(config, self.layer_embedding)
    self.decoder = Decoder(config, self.layer_embedding)
    self.dropout = Dropout(config.embedding_dropout, config.dropout_generator)

  def _table(self, name: str, size: int) -> Matrix:
    init = nn.initializers.normal(self.config.width**-0.5)
    axes = ('vocab', 'embed')
    return parameter(self, name, init, axes, (size, self.config.width))

  def _positions(self, name: str) -> Float[Array, 'P D']:
    init = nn.initializers.normal(self.config.width**-0.5)
    shape = self.config.max_positions, self.config.width
    return parameter(self, name, init, ('position', 'embed'), shape)

  def _output_layer(self) -> OutputLayer:
    config, size = self.config, self.target_vocabulary
    table, bias = self.target_table, None
    if config.tied_embeddings in ('none', 'source_target'):
      if config.initialization == 'fan_in':
        init = kernel_initializer(config)
        table = parameter(
          self,
          'output_table',
          lambda key, shape: init(key, shape[::-1]).T,
          ('vocab', 'embed'),
          (size, config.width),
        )
      else:
        table = self._table('output_table', size)
    if config.output_bias:
      start = bias_initializer(config, config.width)
      bias = parameter(self, 'output_bias', start, ('vocab',), (size,))
    return OutputLayer(table, bias)

  def _embed(
    self,
    table: Matrix,
    learned: Float[Array, 'P D'] | None,
    tokens: Int[Array, 'B T'],
    positions: Int[Array, '*#B T'],
    deterministic: bool,
  ) -> States:
    config = self.config
    embedding = self._looked_up(table, tokens)
    if learned is not None:
      encoding = learned[positions]
    elif positions.ndim == 1:
      encoding = sinusoids(positions, config.width, config.positions)
    else:
      # Sines are computed once for each position and gathered for every row.
      places = jnp.arange(positions.shape[1])
      encoding = sinusoids(places, config.width, config.positions)[positions]
    dtype = jnp.dtype(config.compute_dtype)
    return self.dropout((embedding + encoding).astype(dtype), deterministic)

  def _looked_up(self, table: Matrix, tokens: Int[Array, 'B T']) -> States:
    embedding = rows_of(table, tokens)
    if self.config.scale_embedding:
      embedding = embedding * self.config.width**0.5
    return embedding

  def _embed_target(
    self,
    tokens: Int[Array, 'B T'],
    positions: Int[Array, '*#B T'],
    deterministic: bool,
  ) -> States:
    learned = getattr(self, 'target_positions', None)
    return self._embed(
      self.target_table, learned, tokens, positions, deterministic
    )

  def encode(
    self,
    source: Int[Array, 'B S'],
    source_lengths: Int[Array, ' B'],
    deterministic: bool = True,
    source_segments: Int[Array, 'B S'] | None = None,
  ) -> StackOutput:
    """Run the encoder.

    Args:
      source: Token ids, int32, the end symbol included.
      source_lengths: Number of tokens in each row, int32; what follows is
        padding.
      source_segments: Segments of a batch of packed rows, int32; see `Batch`.

    Returns:
      The features, which the decoder attends to, H[0..L], and the embeddings
      that the decoder predicts from, if it does.
    """
    positions = (
      jnp.arange(source.shape[1])
      if source_segments is None
      else segment_positions(source_segments)
    )
    learned = getattr(self, 'source_positions', None)
    x = self._embed(
      self.source_table, learned, source, positions, deterministic
    )
    padding = mask = padding_mask(source_lengths, source.shape[1])
    if source_segments is not None:
      mask = segment_mask(source_segments, source_segments)
    encoded = self.encoder(
      x, Context(mask, deterministic, tokens=padding[:, 0, 0])
    )
    if not scheme_of(self.config, 'decoder').reads_embeddings:
      return encoded
    bare = self._looked_up(self.source_table, source).astype(x.dtype)
    return encoded._replace(embeddings=self.dropout(bare, deterministic))

  def __call__(
    self,
    source: Int[Array, 'B S'],
    source_lengths: Int[Array, ' B'],
    target: Int[Array, 'B T'],
    deterministic: bool = True,
    target_lengths: Int[Array, ' B'] | None = None,
    source_segments: Int[Array, 'B S'] | None = None,
    target_segments: Int[Array, 'B T'] | None = None,
  ) -> ModelOutput:
    """Run encoder and decoder with teacher forcing.

    Padding after the end of a target needs no mask: causality hides it from
    every real token, and the loss gives it no weight.

    With segments the sentences of a row are independent: each attends to its
    own tokens and to its own source, and its positions begin at 0.

    Args:
      source: Token ids, int32, the end symbol included.
      source_lengths: Number of tokens in each row, int32.
      target: Token ids, int32, the end symbol included, no start symbol.
      target_lengths: Number of tokens in each row, int32, for the telemetry; no
        output depends on them.
      source_segments: Segments of a batch of packed rows, int32; see `Batch`.
      target_segments: Segments of the target; given with those of the source or
        not at all.

    Returns:
      Decoder features, output projection, and H[0..L] of both stacks.
    """
    encoded = self.encode(
      source, source_lengths, deterministic, source_segments
    )
    length, starts = target.shape[1], None
    if target_segments is not None:
      starts = segment_positions(target_segments)
    shifted = shift_right(target, self.start_id, starts)
    places = jnp.arange(length) if starts is None else starts
    x = self._embed_target(shifted, places, deterministic)
    tokens = None
    if target_lengths is not None:
      tokens = jnp.arange(length) < target_lengths[:, None]
    padding = memory_mask = padding_mask(source_lengths, source.shape[1])
    mask = causal_mask(length)
    if target_segments is not None:
      assert source_segments is not None, 'segments of one side alone'
      mask = mask & segment_mask(target_segments, target_segments)
      memory_mask = segment_mask(target_segments, source_segments)
    context = Context(
      mask, deterministic, tokens=tokens, memory_mask=memory_mask
    )
    decoded = self.decoder(x, context, self.decoder.memories(encoded, padding))
    return ModelOutput(
      self._for_output(decoded.features),
      self.output_layer,
      encoded.layers,
      decoded.layers,
      encoded.features,
      decoded.log_weights,
    )

  def start_decoding(
    self,
    encoded: StackOutput,
    source_lengths: Int[Array, ' B'],
    beam: int,
    max_length: int,
  ) -> tuple[tuple[Cache, ...], Memory]:
    """Return an empty cache, and what all decoding steps read of the source.

    Args:
      source_lengths: Number of tokens in each row, int32.
      beam: Number K of hypotheses of a sentence.
      max_length: Largest number T of steps.

    Returns:
      The cache of K rows at each of T positions, one for each attention, with
      scan_layers one with leaves [L, ...]; and the memory.
    """
    mask = padding_mask(source_lengths, encoded.layers[0].shape[1])
    memory = Memory(self.decoder.memories(encoded, mask), mask)
    first = jnp.full((source_lengths.shape[0], 1), self.start_id)
    caches = CacheCursor()
    # Only the shapes of what this pass caches are used; XLA drops the rest.
    self._decode(first, jnp.int32(0), memory, caches, causal_mask(1))

    cache = tuple(empty(one, max_length * beam) for one in caches.seen)
    return cache, memory

  def decode_step(
    self,
    tokens: Int[Array, 'B K'],
    position: Int[Array, ''],
    rows: Int[Array, 'B K P'],
    cache: tuple[Cache, ...],
    memory: Memory,
  ) -> tuple[Float[Array, 'B K V'], tuple[Cache, ...]]:
    """Return the logits of the next token of every hypothesis.

    Args:
      tokens: Newest token of each hypothesis, int32; `start_id` at position 0.
      rows: Row of the cache that holds each position of each hypothesis, int32.
        Hypothesis k writes this position into row k.

    Returns:
      Logits, float32, which already are log-probabilities if
      `gives_log_probabilities`; and the cache with this position.
    """
    batch, beam = tokens.shape
    caches = CacheCursor(cache, position * beam)
    mask = rows_mask(rows, position)
    decoded = self._decode(tokens, position, memory, caches, mask)
    *groups, _, _, width = decoded.features.shape
    features = self._for_output(decoded.features)
    features = features.reshape(*groups, batch * beam, width)
    if decoded.log_weights is None:
      logits = output_logits(features, self.output_layer)
    else:
      logits = mixture_log_probabilities(
        features,
        decoded.log_weights,
        functools.partial(output_logits, output=self.output_layer),
        self.config.decoder.combine,
      )
    return logits.reshape(batch, beam, -1), tuple(caches.seen)

  @nn.nowrap
  def take_sentences(
    self, cache: tuple[Cache, ...], memory: Memory, sentences: Int[Array, ' M']
  ) -> tuple[tuple[Cache, ...], Memory]:
    """Return the cache and the memory of some of the sentences."""

    def taken(tree: Any, axis: int) -> Any:
      return jax.tree.map(
        lambda leaf: jnp.take(leaf, sentences, axis, mode='clip'), tree
      )

    of_layers = 1 if self.config.scan_layers else 0
    own = memory.keys_values
    kept = Memories(taken(own.layers, of_layers), taken(own.surface, 0))
    return taken(cache, of_layers), Memory(kept, memory.mask[sentences])

  def _for_output(
    self, features: Float[Array, '*G B T D']
  ) -> Float[Array, '*G B T D']:
    if self.config.product_dtype == 'bfloat16':
      return features.astype(jnp.bfloat16)
    return features

  @property
  def gives_log_probabilities(self) -> bool:
    """Whether `decode_step` returns the logarithm of a mixture."""
    return predictions_of(self.config) is not None

  def _decode(
    self,
    tokens: Int[Array, 'B K'],
    position: Int[Array, ''],
    memory: Memory,
    caches: CacheCursor,
    mask: Bool[Array, '#B 1 K U'],
  ) -> StackOutput:
    positions = jnp.full(tokens.shape[1], position)
    x = self._embed_target(tokens, positions, deterministic=True)
    context = Context(
      mask, deterministic=True, caches=caches, memory_mask=memory.mask
    )
    return self.decoder(x, context, memory.keys_values)


def output_logits(
  features: Float[Array, 'M D'], output: OutputLayer
) -> Float[Array, 'M V']:
  """Return features table^T + bias, float32 [M, V]."""
  logits = product(features, output.table, is_table=True, dtype=jnp.float32)
  return logits if output.bias is None else logits + output.bias


def boxed_parameters(model: Transformer, seed: int) -> Parameters:
  """Return fresh parameters, each in a box with its logical axis names."""
  ids, lengths = jnp.zeros((1, 2), jnp.int32), jnp.ones((1,), jnp.int32)
  fresh = model.init(jax.random.key(seed), ids, lengths, ids)['params']
  return plugs.started(model.config, fresh)


def initial_parameters(model: Transformer, seed: int) -> Parameters:
  """Return fresh parameters, which depend on the seed alone."""
  return nn.unbox(boxed_parameters(model, seed))


# The last parts of their names. A parameter that a new scheme adds under
# another name has no decay until it is listed here.
_WEIGHTS = frozenset(
  {
    'kernel',
    'embedding',
    'source_embedding',
    'target_embedding',
    'output_table',
    'source_positions',
    'target_positions',
  }
)


def path_name(path: tuple[Any, ...]) -> str:
  """Return 'encoder/layer_0/feed_forward/out/kernel' from the path of a leaf.

  Flax's box around a parameter is not part of its name.
  """
  keys = tuple(key for key in path if isinstance(key, jax.tree_util.DictKey))
  return jax.tree_util.keystr(keys, simple=True, separator='/')


def are_weights(parameters: Parameters) -> Parameters:
  """Return a tree with True where a parameter is a weight matrix or table."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: path_name(path).rpartition('/')[2] in _WEIGHTS, parameters
  )
