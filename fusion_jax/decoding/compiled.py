"""The program that translates a batch, and what it is compiled for."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int32

from fusion_jax.config import DecodingConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.ensemble import Ensemble, Mixture
from fusion_jax.decoding.model_step import Source, start
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.shards import over_rows
from fusion_jax.search.beam import beam_search
from fusion_jax.search.constraints import Requirements, TokenRules
from fusion_jax.search.hypotheses import Hypotheses, LengthPenalty
from fusion_jax.search.sample import Sampling, sample


@dataclasses.dataclass(frozen=True)
class SearchSettings:
  """What the program depends on, beside shapes and models.

  Attributes:
    beam: live hypotheses, or samples.
    keep: hypotheses to return.
    end_id: the token that ends a hypothesis.
    penalty: the length penalty.
    coverage: weight of the coverage penalty.
    patience: of `beam_search`.
    rules: what hypotheses must not contain.
    sampling: what is drawn from; None: beam search.
    mixture: of the models.
    narrows: the last quarter of a batch, on each device, goes on alone.
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
  narrows: bool = False


class SearchRows(NamedTuple):
  """A batch.

  sources: for each model.
  max_lengths: of the translations.
  numbers: of the sentences; they decide what is drawn.
  requirements: shortest lengths and prefixes; None where there are none.
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
  """Encodes and searches one batch; each device its rows, by itself.

  It is compiled once for all translators of the same models, so that
  translating again with newer parameters costs no compilation.

  Args:
    parameters: of each model.
    rows: the batch.
    models: what translates.
    settings: of the search.
    max_length: room for the longest translation.

  Returns:
    `settings.keep` hypotheses of each sentence.
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
    max_lengths=rows.max_lengths,
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
      compact_batch=step.compact_batch if settings.narrows else None,
    )
  found = decode(
    samples=settings.beam, numbers=rows.numbers, sampling=settings.sampling
  )
  return jax.tree.map(lambda leaf: leaf[:, : settings.keep], found)


def search_settings(
  options: DecodingConfig, ensemble: Ensemble, keep: int
) -> SearchSettings:
  """The settings that options mean for an ensemble.

  Args:
    options: of the decoding.
    ensemble: gives vocabulary and mixture.
    keep: hypotheses to return.

  Returns:
    The settings.

  Raises:
    InputError: a forbidden piece is not in the vocabulary, or the beam is
      wider than it.
  """
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
