"""One or more models as the step of a search.

The coverage penalty is that of Wu et al. (2016), section 7, Eq. 14:
cp(X, Y) = sum_i log(min(sum_j p_ij, 1)), where p_ij is the attention of target
position j over source position i, here the mean over the heads of all layers.
It is at most 0, and the score of a translation is log P(Y) / penalty(|Y|) +
beta cp(X, Y).

Axis letters: B batch, K hypotheses of a sentence, S source, T positions,
L layers, N heads, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from fusion_jax.decoding.ensemble import Mixture
from fusion_jax.layers.attention import rows_mask
from fusion_jax.layers.sow import cross_attention_weights
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.search.hypotheses import CompactedBatch

# Lower bound of the attention on a source position, for a finite logarithm.
_LEAST = 1e-6


def mean_attention(
  weights: Float32[Array, 'L B N T S'],
) -> Float32[Array, 'B T S']:
  """Return the mean over layers and heads."""
  return weights.mean((0, 2))


def coverage_penalty(
  attended: Float32[Array, '*B S'], tokens: Bool[Array, '*#B S']
) -> Float32[Array, '*B']:
  """Compute cp of translations."""
  penalty = jnp.log(jnp.clip(attended, _LEAST, 1.0))
  return jnp.where(tokens, penalty, 0).sum(-1)


def write_attention(
  cache: Float32[Array, 'B P S'],
  attention: Float32[Array, 'B K S'],
  position: Int32[Array, ''],
) -> Float32[Array, 'B P S']:
  """Write the attention of a step into the cache [B, T * K, S]."""
  start = position * attention.shape[1]
  return jax.lax.dynamic_update_slice_in_dim(cache, attention, start, axis=1)


def attended_sources(
  cache: Float32[Array, 'B P S'],
  rows: Int32[Array, 'B K T'],
  position: Int32[Array, ''],
) -> Float32[Array, 'B K S']:
  """Sum p_ij over j for each hypothesis up to a position."""
  own = rows_mask(rows, position)[:, 0].astype(cache.dtype)
  return jnp.einsum('BKP,BPS->BKS', own, cache)


class Source(NamedTuple):
  """Source sentences as one model reads them."""

  ids: Int32[Array | np.ndarray, 'B S']
  lengths: Int32[Array | np.ndarray, ' B']

  @property
  def tokens(self) -> Bool[Array, 'B S']:
    """Mask of the tokens [B, S], False at padding."""
    return jnp.arange(self.ids.shape[1]) < self.lengths[:, None]


class ModelCache(NamedTuple):
  """Cache of one model for the positions so far.

  Attributes:
    own: Keys and values of the model.
    attention: Weights over the source, [B, T * K, S]; None without a coverage
      penalty.
  """

  own: Any
  attention: Float32[Array, 'B P S'] | None


@dataclasses.dataclass(frozen=True)
class ModelStep:
  """Step of models that translate together, prepared by `start`.

  Attributes:
    models: Models of the ensemble.
    parameters: Parameters of each model.
    sources: Source sentences as each model reads them.
    memories: What each model computed of the source in `start_decoding`.
    mixture: Mixture of their predictions.
    coverage: Weight of the coverage penalty.
  """

  models: tuple[Transformer, ...]
  parameters: tuple[Parameters, ...]
  sources: tuple[Source, ...]
  memories: tuple[Any, ...]
  mixture: Mixture
  coverage: float

  @property
  def normalised(self) -> bool:
    """Whether the logits are log-probabilities."""
    return len(self.models) > 1 or self.models[0].gives_log_probabilities

  def __call__(
    self,
    tokens: Int32[Array, 'B K'],
    position: Int32[Array, ''],
    rows: Int32[Array, 'B K T'],
    caches: tuple[ModelCache, ...],
  ) -> tuple[Float32[Array, 'B K V'], tuple[ModelCache, ...]]:
    """Compute the next logits and caches; see `hypotheses.Step`."""
    results = [
      self._one(index, tokens, position, rows, cache)
      for index, cache in enumerate(caches)
    ]
    logits, caches = zip(*results, strict=True)
    if len(self.models) == 1:
      return logits[0], caches
    log_p = [
      each if model.gives_log_probabilities else jax.nn.log_softmax(each)
      for each, model in zip(logits, self.models, strict=True)
    ]
    return self.mixture.log_probabilities(log_p), caches

  def _one(
    self,
    index: int,
    tokens: Int32[Array, 'B K'],
    position: Int32[Array, ''],
    rows: Int32[Array, 'B K T'],
    cache: ModelCache,
  ) -> tuple[Float32[Array, 'B K V'], ModelCache]:
    apply = functools.partial(
      self.models[index].apply,
      {'params': self.parameters[index]},
      *(tokens, position, rows, cache.own, self.memories[index]),
      method='decode_step',
    )
    if cache.attention is None:
      logits, own = apply()
      return logits, ModelCache(own, None)
    (logits, own), kept = apply(mutable=['attention'])
    weights = cross_attention_weights(kept['attention'])
    attention = write_attention(
      cache.attention, mean_attention(weights), position
    )
    return logits, ModelCache(own, attention)

  def coverage_score(
    self,
    rows: Int32[Array, 'B K T'],
    position: Int32[Array, ''],
    caches: tuple[ModelCache, ...],
  ) -> Float32[Array, 'B K']:
    """Compute the coverage penalty, averaged with the weights of the models."""
    each = []
    for weight, cache, source in zip(
      self.mixture.weights, caches, self.sources, strict=True
    ):
      assert cache.attention is not None
      attended = attended_sources(cache.attention, rows, position)
      penalty = coverage_penalty(attended, source.tokens[:, None])
      each.append(weight * penalty)
    return self.coverage * functools.reduce(jnp.add, each)

  def compact_batch(
    self, sentences: Int32[Array, ' M'], caches: tuple[ModelCache, ...]
  ) -> CompactedBatch:
    """Restrict step and cache to some sentences; see `CompactBatch`."""
    own, memories = [], []
    for model, cache, memory in zip(
      self.models, caches, self.memories, strict=True
    ):
      kept, memory = model.take_sentences(cache.own, memory, sentences)
      attention = cache.attention
      if attention is not None:
        attention = attention[sentences]
      own.append(ModelCache(kept, attention))
      memories.append(memory)
    sources = jax.tree.map(lambda leaf: leaf[sentences], self.sources)
    step = dataclasses.replace(self, sources=sources, memories=tuple(memories))
    return CompactedBatch(
      step, step.coverage_score if self.coverage else None, tuple(own)
    )


def start(
  models: Sequence[Transformer],
  parameters: Sequence[Parameters],
  sources: Sequence[Source],
  *,
  beam: int,
  max_length: int,
  mixture: Mixture,
  coverage: float,
) -> tuple[ModelStep, tuple[ModelCache, ...]]:
  """Encode the source with every model."""
  caches, memories = [], []
  for model, own, source in zip(models, parameters, sources, strict=True):
    apply = functools.partial(model.apply, {'params': own})
    encoded = apply(source.ids, source.lengths, method='encode')
    cache, memory = apply(
      encoded, source.lengths, beam, max_length, method='start_decoding'
    )
    batch, length = source.ids.shape
    shape = batch, max_length * beam, length
    attention = jnp.zeros(shape, jnp.float32) if coverage else None
    caches.append(ModelCache(cache, attention))
    memories.append(memory)
  step = ModelStep(
    tuple(models),
    tuple(parameters),
    tuple(sources),
    tuple(memories),
    mixture,
    coverage,
  )
  return step, tuple(caches)
