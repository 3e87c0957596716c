"""One or more models as the step of a search, and the search of one batch.

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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from fusion_jax.config import DecodingConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.ensemble import Ensemble, Mixture
from fusion_jax.errors import InputError
from fusion_jax.layers.attention import rows_mask
from fusion_jax.layers.sow import cross_attention_weights
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.mesh import over_rows
from fusion_jax.search.beam import beam_search
from fusion_jax.search.constraints import Requirements, TokenRules
from fusion_jax.search.hypotheses import (
  CompactedBatch,
  Hypotheses,
  LengthPenalty,
)
from fusion_jax.search.sample import Sampling, sample

# Lower bound of the attention on a source position, for a finite logarithm.
_LEAST = 1e-6


def coverage_penalty(
  attended: Float32[Array, '*B S'], tokens: Bool[Array, '*#B S']
) -> Float32[Array, '*B']:
  """Compute cp of translations."""
  penalty = jnp.log(jnp.clip(attended, _LEAST, 1.0))
  return jnp.where(tokens, penalty, 0).sum(-1)


class Source(NamedTuple):
  """Source sentences as one model reads them."""

  ids: Int32[Array | np.ndarray, 'B S']
  lengths: Int32[Array | np.ndarray, ' B']

  @property
  def tokens(self) -> Bool[Array, 'B S']:
    """Mask of the tokens [B, S], False at padding."""
    return jnp.arange(self.ids.shape[1]) < self.lengths[:, None]


@dataclasses.dataclass(frozen=True)
class SearchSettings:
  """Settings that the program depends on, besides shapes and models."""

  beam: int  # Live hypotheses, or samples.
  keep: int  # Hypotheses to return.
  end_id: int
  penalty: LengthPenalty
  coverage: float = 0.0  # Weight of the coverage penalty.
  patience: float = 0.0
  rules: TokenRules = TokenRules()
  sampling: Sampling | None = None  # None: beam search.
  mixture: Mixture = Mixture()
  # Whether the last quarter of a batch, on each device, is searched without the
  # other sentences.
  compacts: bool = False


class SearchRows(NamedTuple):
  """Batch of source sentences to search; the numbers decide what is drawn."""

  sources: tuple[Source, ...]  # As each model reads them.
  max_lengths: Int32[Array | np.ndarray, ' B']
  numbers: Int32[Array | np.ndarray, ' B']
  requirements: Requirements | None = None


class ModelCache(NamedTuple):
  """Cache of one model for the positions so far."""

  # Of a single sentence without the axis of the batch: with it, XLA's CPU
  # backend would copy the cache at every step.
  own: Any
  # Weights over the source, [B, T * K, S]; None without a coverage penalty.
  attention: Float32[Array, 'B P S'] | None


@dataclasses.dataclass(frozen=True)
class ModelStep:
  """Step of models that translate together, prepared by `start`."""

  models: tuple[Transformer, ...]
  parameters: tuple[Parameters, ...]
  sources: tuple[Source, ...]
  memories: tuple[Any, ...]  # Made of the sources by `start_decoding`.
  settings: SearchSettings

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
      scores if model.gives_log_probabilities else jax.nn.log_softmax(scores)
      for scores, model in zip(logits, self.models, strict=True)
    ]
    return self.settings.mixture.log_probabilities(log_p), caches

  def _one(
    self,
    index: int,
    tokens: Int32[Array, 'B K'],
    position: Int32[Array, ''],
    rows: Int32[Array, 'B K T'],
    cache: ModelCache,
  ) -> tuple[Float32[Array, 'B K V'], ModelCache]:
    model, batch = self.models[index], len(tokens)
    own = _as_read(model, cache.own, batch)
    apply = functools.partial(
      model.apply,
      {'params': self.parameters[index]},
      *(tokens, position, rows, own, self.memories[index]),
      method='decode_step',
    )
    if cache.attention is None:
      logits, own = apply()
      return logits, ModelCache(_as_kept(model, own, batch), None)
    (logits, own), kept = apply(mutable=['attention'])
    attention = cross_attention_weights(kept['attention']).mean((0, 2))
    attention = jax.lax.dynamic_update_slice_in_dim(
      cache.attention, attention, position * tokens.shape[1], axis=1
    )
    return logits, ModelCache(_as_kept(model, own, batch), attention)

  def coverage_score(
    self,
    rows: Int32[Array, 'B K T'],
    position: Int32[Array, ''],
    caches: tuple[ModelCache, ...],
  ) -> Float32[Array, 'B K']:
    """Compute the coverage penalty, averaged with the weights of the models."""
    total = jnp.float32(0)
    for weight, cache, source in zip(
      self.settings.mixture.weights, caches, self.sources, strict=True
    ):
      assert cache.attention is not None
      written = rows_mask(rows, position)[:, 0].astype(cache.attention.dtype)
      attended = jnp.einsum('BKP,BPS->BKS', written, cache.attention)
      total += weight * coverage_penalty(attended, source.tokens[:, None])
    return self.settings.coverage * total

  def compact_batch(
    self, sentences: Int32[Array, ' M'], caches: tuple[ModelCache, ...]
  ) -> CompactedBatch:
    """Restrict step and cache to some sentences; see `CompactBatch`."""
    left, memories = [], []
    for model, (own, attention), memory in zip(
      self.models, caches, self.memories, strict=True
    ):
      own, memory = model.take_sentences(own, memory, sentences)
      attention = None if attention is None else attention[sentences]
      left.append(ModelCache(_as_kept(model, own, len(sentences)), attention))
      memories.append(memory)
    sources = jax.tree.map(lambda leaf: leaf[sentences], self.sources)
    step = dataclasses.replace(self, sources=sources, memories=tuple(memories))
    coverage_score = step.coverage_score if self.settings.coverage else None
    return CompactedBatch(step, coverage_score, tuple(left))


def _as_kept(model: Transformer, cache: Any, batch: int) -> Any:
  if batch > 1:
    return cache
  axis = int(model.config.scan_layers)
  return jax.tree.map(lambda leaf: jnp.squeeze(leaf, axis), cache)


def _as_read(model: Transformer, kept: Any, batch: int) -> Any:
  if batch > 1:
    return kept
  axis = int(model.config.scan_layers)
  return jax.tree.map(lambda leaf: jnp.expand_dims(leaf, axis), kept)


def start(
  models: tuple[Transformer, ...],
  parameters: tuple[Parameters, ...],
  sources: tuple[Source, ...],
  settings: SearchSettings,
  max_length: int,
) -> tuple[ModelStep, tuple[ModelCache, ...]]:
  """Encode the source with every model."""
  caches, memories = [], []
  for model, values, source in zip(models, parameters, sources, strict=True):
    apply = functools.partial(model.apply, {'params': values})
    encoded = apply(source.ids, source.lengths, method='encode')
    cache, memory = apply(
      *(encoded, source.lengths, settings.beam, max_length),
      method='start_decoding',
    )
    batch, length = source.ids.shape
    attention = None
    if settings.coverage:
      shape = batch, max_length * settings.beam, length
      attention = jnp.zeros(shape, jnp.float32)
    caches.append(ModelCache(_as_kept(model, cache, batch), attention))
    memories.append(memory)
  step = ModelStep(models, parameters, sources, tuple(memories), settings)
  return step, tuple(caches)


@functools.partial(
  jax.jit, static_argnames=('models', 'settings', 'max_length')
)
@over_rows
def search_batch(
  parameters: tuple[Parameters, ...],
  rows: SearchRows,
  *,
  models: tuple[Transformer, ...],
  settings: SearchSettings,
  max_length: int,
) -> Hypotheses:
  """Encode and search one batch, on each device its own rows.

  It is compiled once for all translators of the same models, so that
  translating again with newer parameters costs no compilation.
  """
  step, cache = start(models, parameters, rows.sources, settings, max_length)
  decode = functools.partial(
    beam_search if settings.sampling is None else sample,
    step,
    cache,
    max_length=max_length,
    max_lengths=jnp.asarray(rows.max_lengths),
    start_id=models[0].start_id,
    end_id=settings.end_id,
    penalty=settings.penalty,
    coverage_score=step.coverage_score if settings.coverage else None,
    normalised=step.normalised,
    rules=settings.rules,
    requirements=rows.requirements,
  )
  if settings.sampling is None:
    return decode(
      batch=rows.numbers.shape[0],
      beam=settings.beam,
      keep=settings.keep,
      patience=settings.patience,
      compact_batch=step.compact_batch if settings.compacts else None,
    )
  result = decode(
    samples=settings.beam, numbers=rows.numbers, sampling=settings.sampling
  )
  return jax.tree.map(lambda leaf: leaf[:, : settings.keep], result)


def search_settings(
  options: DecodingConfig, ensemble: Ensemble, keep: int
) -> SearchSettings:
  """Return the settings that options imply for an ensemble."""
  tokenizer = ensemble.tokenizer
  size = tokenizer.vocabulary.size
  if options.beam_size > size:
    raise InputError(
      f'config.decoding.beam_size: must be at most {size}, the subwords of the '
      f'target vocabulary, got {options.beam_size}'
    )
  sampling = None
  if options.search == 'sample':
    sampling = Sampling(
      options.temperature, options.top_k, options.top_p, options.seed
    )
  return SearchSettings(
    beam=options.beam_size,
    keep=keep,
    end_id=tokenizer.vocabulary.end,
    penalty=LengthPenalty(options.length_penalty, options.alpha),
    coverage=options.coverage,
    patience=options.patience,
    rules=TokenRules(_forbidden(options, tokenizer), options.no_repeat_ngram),
    sampling=sampling,
    mixture=ensemble.mixture,
  )


def _forbidden(
  options: DecodingConfig, tokenizer: Tokenizer
) -> tuple[int, ...]:
  vocabulary = tokenizer.vocabulary
  ids = {vocabulary.unknown} if options.forbid_unknown else set()
  for piece in options.forbidden:
    token = tokenizer.id_of(piece)
    if token is None or token == vocabulary.end:
      raise InputError(
        f'config.decoding.forbidden: {piece!r} is no piece of the target '
        'vocabulary that can be forbidden'
      )
    ids.add(token)
  return tuple(sorted(ids))
