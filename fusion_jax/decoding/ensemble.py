"""Runs that translate: ensembles, and the direction and groups of each run."""

import argparse
import dataclasses
import logging
import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32

from fusion_jax.config import DataConfig
from fusion_jax.config.presets import changed
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.runs.loading import TrainedModel, load_run, selection_of

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Mixture:
  """Mixture of the predictions of several models, whose weights sum to 1.

  It is sum_i w_i p_i, or 'geometric', prod_i p_i^w_i scaled to sum 1.
  """

  weights: tuple[float, ...] = (1.0,)
  combine: Literal['arithmetic', 'geometric'] = 'arithmetic'

  def log_probabilities(
    self, log_p: Sequence[Float32[Array, '*R V']]
  ) -> Float32[Array, '*R V']:
    """Return the logarithm of the mixture."""
    weights = jnp.asarray(self.weights, jnp.float32)
    if self.combine == 'arithmetic':
      weighted = [w + p for w, p in zip(jnp.log(weights), log_p, strict=True)]
      return jax.nn.logsumexp(jnp.stack(weighted), axis=0)
    total = sum(w * p for w, p in zip(weights, log_p, strict=True))
    return jax.nn.log_softmax(total)


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """Runs of one target vocabulary; their source segmentations may differ.

  The first run gives languages, options and length limits.
  """

  runs: tuple[TrainedModel, ...]
  mixture: Mixture = Mixture()

  @property
  def tokenizer(self) -> Tokenizer:
    """Tokenizer of the target side."""
    return self.runs[0].target_tokenizer

  @property
  def longest(self) -> int | None:
    """Largest number of positions of all models; None without a limit."""
    limits = (run.longest for run in self.runs)
    return min((n for n in limits if n is not None), default=None)


def alone(run: TrainedModel | Ensemble) -> Ensemble:
  """Wrap a run as an ensemble of one; return an ensemble unchanged."""
  return run if isinstance(run, Ensemble) else Ensemble((run,))


def make_ensemble(
  runs: Sequence[TrainedModel],
  names: Sequence[str],
  weights: Sequence[float] = (),
  combine: Literal['arithmetic', 'geometric'] = 'arithmetic',
) -> Ensemble:
  """Join runs to an ensemble."""
  first = runs[0]
  for run, name in zip(runs, names, strict=True):
    if run.target_tokenizer.digest != first.target_tokenizer.digest:
      raise InputError(
        f'--workdir: {name} has another target vocabulary than {names[0]}; '
        'runs of an ensemble must share it'
      )
    pairs = [
      f'{data.source_language} to {data.target_language}'
      for data in (first.config.data, run.config.data)
    ]
    if pairs[0] != pairs[1]:
      raise InputError(
        f'--workdir: {name} translates {pairs[1]}, but {names[0]} {pairs[0]}'
      )
  weights = tuple(weights) or (1.0,) * len(runs)
  allowed = all(0 < weight < math.inf for weight in weights)
  if len(weights) != len(runs) or not allowed:
    raise InputError(
      f'--weights: must be {len(runs)} positive numbers, one for each run, got '
      f'{",".join(map(str, weights))}'
    )
  total = sum(weights)
  return Ensemble(
    tuple(runs), Mixture(tuple(w / total for w in weights), combine)
  )


def in_direction(
  run: TrainedModel, name: str, source: str = '', target: str = ''
) -> TrainedModel:
  """Return a run that translates in one direction alone.

  Its source tokenizer puts the tags of the direction before every line, and
  no tag can occur in a translation.
  """
  data = run.config.data
  source, target = choose_direction(data, name, source, target)
  id_of = run.target_tokenizer.id_of
  tags = tuple(tag for tag in data.all_tags if id_of(tag) is not None)
  return changed(
    run,
    {
      'config.data': data.between(source, target),
      'config.decoding.forbidden': run.config.decoding.forbidden + tags,
      'source_tokenizer': run.source_tokenizer.tagged(
        data.tags(source, target)
      ),
    },
  )


def load_chosen(arguments: argparse.Namespace) -> TrainedModel:
  """Load the run that flags choose, in one direction."""
  run = load_run(arguments.workdir, selection_of(arguments))
  languages = arguments.source_language, arguments.target_language
  return in_direction(run, str(arguments.workdir), *languages)


def choose_direction(
  data: DataConfig, name: str, source: str, target: str
) -> tuple[str, str]:
  """Choose the languages to translate between.

  Two languages that the run was trained on, but not in this order or not as a
  pair, are a zero-shot direction (Johnson et al. 2017, section 5); a warning
  says so.
  """
  every = data.all_directions
  known = [direction.languages for direction in every]
  asked = ' '.join(
    f'--{side}_language={language}'
    for side, language in (('source', source), ('target', target))
    if language
  )
  fitting = [p for p in known if source in ('', p[0]) and target in ('', p[1])]
  if len(fitting) == 1:
    return fitting[0]
  listed = ', '.join(direction.name for direction in every)
  if fitting:
    raise InputError(
      f'{name} translates in several directions: {listed}; give '
      '--source_language and --target_language'
    )
  if not data.directions:
    raise InputError(
      f'{asked}: {name} translates from {known[0][0]} to {known[0][1]}'
    )
  sources, targets = map(set, zip(*known, strict=True))
  if source in sources and target in targets - {source} and data.target_tag:
    logger.warning(
      f'{name} was not trained to translate from {source} to {target}: '
      'zero-shot'
    )
    return source, target
  raise InputError(f'{asked}: {name} translates {listed}')


def with_groups(run: TrainedModel, groups: str) -> TrainedModel:
  """Return the run with only some groups of its decoder.

  Layers above the last of them are not computed, and the weights of the
  remaining groups sum to 1; Yang et al. (2022), Table VI.
  """
  decoder = run.config.model.decoder
  if decoder.fusion != 'gtrans':
    raise InputError(
      f'--groups={groups}: the decoder has no groups, its fusion is '
      f'{decoder.fusion!r}'
    )
  run = changed(run, {'config.model.decoder.options.inference_groups': groups})
  return changed(run, {'model': run.model.clone(config=run.config.model)})
