"""Encoder and decoder stacks; both return every H[0..L] as a value.

H[0] is the input of the first layer, H[l] the output of layer l.
Axis letters: B batch, S source, T target, D model width, K beam.
"""

from typing import NamedTuple

import jax
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.config import ModelConfig
from fusion_jax.models.attention import KeyValue, MultiHeadAttention, append
from fusion_jax.models.layers import FeedForward, Residual, layer_norm


class StackOutput(NamedTuple):
  """features: what follows reads. layers: H[0..L], before any final norm."""

  features: Float[Array, 'B T D']
  layers: tuple[Float[Array, 'B T D'], ...]


class EncoderLayer(nn.Module):
  """Self-attention, then feed-forward."""

  config: ModelConfig

  def setup(self):
    self.self_attention = MultiHeadAttention(self.config)
    self.self_attention_residual = Residual(self.config)
    self.feed_forward = FeedForward(self.config)
    self.feed_forward_residual = Residual(self.config)

  def __call__(
    self,
    x: Float[Array, 'B S D'],
    mask: Bool[Array, '#B #N #S S'],
    deterministic: bool,
  ) -> Float[Array, 'B S D']:
    h = self.self_attention_residual.before(x)
    y = self.self_attention(
      h, self.self_attention.keys_values(h), mask, deterministic
    )
    x = self.self_attention_residual.after(x, y, deterministic)
    y = self.feed_forward(self.feed_forward_residual.before(x), deterministic)
    return self.feed_forward_residual.after(x, y, deterministic)


class Encoder(nn.Module):
  """encoder_layers layers and, with norm='pre', a final norm."""

  config: ModelConfig

  def setup(self):
    config = self.config
    self.layer = [EncoderLayer(config) for _ in range(config.encoder_layers)]
    if config.norm == 'pre':
      self.final_norm = layer_norm(config)

  def __call__(
    self,
    x: Float[Array, 'B S D'],
    mask: Bool[Array, '#B #N #S S'],
    deterministic: bool,
  ) -> StackOutput:
    layers = [x]
    for layer in self.layer:
      layers.append(layer(layers[-1], mask, deterministic))
    x = layers[-1]
    features = self.final_norm(x) if self.config.norm == 'pre' else x
    return StackOutput(features, tuple(layers))


class DecoderLayer(nn.Module):
  """Self-attention, attention over the memory, feed-forward."""

  config: ModelConfig

  def setup(self):
    config = self.config
    self.self_attention = MultiHeadAttention(config)
    self.self_attention_residual = Residual(config)
    self.cross_attention = MultiHeadAttention(config)
    self.cross_attention_residual = Residual(config)
    self.feed_forward = FeedForward(config)
    self.feed_forward_residual = Residual(config)

  def memory_keys_values(self, memory: Float[Array, 'B S D']) -> KeyValue:
    """What this layer's cross-attention reads, computed once a sentence."""
    return self.cross_attention.keys_values(memory)

  def __call__(
    self,
    x: Float[Array, 'M T D'],
    mask: Bool[Array, '#M #N #T U'],
    memory: KeyValue,
    memory_mask: Bool[Array, 'B 1 1 S'],
    deterministic: bool,
    cache: KeyValue | None = None,
    position: Int[Array, ''] | None = None,
  ) -> tuple[Float[Array, 'M T D'], KeyValue]:
    """One layer, for all positions or for one with a cache.

    Args:
      x: all positions of B sentences (M = B), or the newest position of each
        of K hypotheses of B sentences (M = B * K, T = 1).
      mask: of the self-attention, True keeps; U = T, or the cache's length.
      memory: of `memory_keys_values`; all hypotheses of a sentence share it.
      memory_mask: True at source tokens.
      deterministic: no dropout.
      cache: keys and values of the earlier positions, if any.
      position: of x in the cache.

    Returns:
      The layer's output, and the keys and values that the self-attention
      read.
    """
    h = self.self_attention_residual.before(x)
    seen = self.self_attention.keys_values(h)
    if cache is not None:
      seen = append(cache, seen, position)
    y = self.self_attention(h, seen, mask, deterministic)
    x = self.self_attention_residual.after(x, y, deterministic)

    h = self.cross_attention_residual.before(x)
    per_sentence = h.reshape(memory.keys.shape[0], -1, h.shape[-1])
    y = self.cross_attention(per_sentence, memory, memory_mask, deterministic)
    y = y.reshape(h.shape)
    x = self.cross_attention_residual.after(x, y, deterministic)

    y = self.feed_forward(self.feed_forward_residual.before(x), deterministic)
    return self.feed_forward_residual.after(x, y, deterministic), seen


class Decoder(nn.Module):
  """decoder_layers layers and, with norm='pre', a final norm."""

  config: ModelConfig

  def setup(self):
    config = self.config
    self.layer = [DecoderLayer(config) for _ in range(config.decoder_layers)]
    if config.norm == 'pre':
      self.final_norm = layer_norm(config)

  def memory_keys_values(
    self, memory: Float[Array, 'B S D']
  ) -> tuple[KeyValue, ...]:
    """Keys and values of the memory for every layer."""
    return tuple(layer.memory_keys_values(memory) for layer in self.layer)

  def __call__(
    self,
    x: Float[Array, 'M T D'],
    mask: Bool[Array, '#M #N #T U'],
    memory: tuple[KeyValue, ...],
    memory_mask: Bool[Array, 'B 1 1 S'],
    deterministic: bool,
    caches: tuple[KeyValue, ...] | None = None,
    position: Int[Array, ''] | None = None,
  ) -> tuple[StackOutput, tuple[KeyValue, ...]]:
    """All positions at once, or one position with caches.

    Args:
      x: H[0], as in `DecoderLayer`.
      mask: of the self-attention, True keeps.
      memory: of `memory_keys_values`.
      memory_mask: True at source tokens.
      deterministic: no dropout.
      caches: of every layer, when x is one position.
      position: of x, when x is one position.

    Returns:
      features and H[0..L], and the self-attention's keys and values.
    """
    layers, seen = [x], []
    for index, layer in enumerate(self.layer):
      cache = None if caches is None else caches[index]
      x, layer_seen = layer(
        x, mask, memory[index], memory_mask, deterministic, cache, position
      )
      layers.append(x)
      seen.append(layer_seen)
    features = self.final_norm(x) if self.config.norm == 'pre' else x
    return StackOutput(features, tuple(layers)), tuple(seen)


def split_beams(cache: tuple[KeyValue, ...], beam: int) -> tuple[KeyValue, ...]:
  """[B * K, ...] leaves as [B, K, ...]."""
  return jax.tree.map(
    lambda leaf: leaf.reshape(-1, beam, *leaf.shape[1:]), cache
  )


def merge_beams(cache: tuple[KeyValue, ...]) -> tuple[KeyValue, ...]:
  """[B, K, ...] leaves as [B * K, ...]."""
  return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), cache)
