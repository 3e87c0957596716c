"""Compiled search of one batch, and the settings it is compiled for."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from fusion_jax.config import DecodingConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.ensemble import Ensemble, Mixture
from fusion_jax.decoding.model_step import Source, start
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.mesh import over_rows
from fusion_jax.search.beam import beam_search
from fusion_jax.search.constraints import Requirements, TokenRules
from fusion_jax.search.hypotheses import Hypotheses, LengthPenalty
from fusion_jax.search.sample import Sampling, sample


@dataclasses.dataclass(frozen=True)
class SearchSettings:
  """Settings that the program depends on, besides shapes and models.

  Attributes:
    beam: Number of live hypotheses, or of samples.
    keep: Number of hypotheses to return.
    end_id: Token that ends a hypothesis.
    penalty: Length penalty.
    coverage: Weight of the coverage penalty.
    patience: Patience of `beam_search`.
    rules: Tokens and n-grams that hypotheses must not contain.
    sampling: Distribution to draw from; None means beam search.
    mixture: Mixture of the models.
    compacts: Whether the last quarter of a batch, on each device, is searched
      without the other sentences.
  """

  beam: int
  keep: int
  end_id: int
  penalty: LengthPenalty
  coverage: float = 0.0
  patience: float = 0.0
  rules: TokenRules = TokenRules()
  sampling: Sampling | None = None
  mixture: Mixture = Mixture()
  compacts: bool = False


class SearchRows(NamedTuple):
  """Batch of source sentences to search.

  Attributes:
    sources: Source sentences for each model.
    max_lengths: Length limits of the translations.
    numbers: Numbers of the sentences, which decide what is drawn.
    requirements: Shortest lengths and prefixes, if any.
  """

  sources: tuple[Source, ...]
  max_lengths: Int32[Array | np.ndarray, ' B']
  numbers: Int32[Array | np.ndarray, ' B']
  requirements: Requirements | None = None


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
  step, cache = start(
    models,
    parameters,
    rows.sources,
    beam=settings.beam,
    max_length=max_length,
    mixture=settings.mixture,
    coverage=settings.coverage,
  )
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
  found = decode(
    samples=settings.beam, numbers=rows.numbers, sampling=settings.sampling
  )
  return jax.tree.map(lambda leaf: leaf[:, : settings.keep], found)


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
    found = tokenizer.id_of(piece)
    if found is None or found == vocabulary.end:
      raise InputError(
        f'config.decoding.forbidden: {piece!r} is no piece of the target '
        'vocabulary that can be forbidden'
      )
    ids.add(found)
  return tuple(sorted(ids))
