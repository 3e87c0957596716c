"""Direction in which a run translates."""

import argparse
import dataclasses
import logging

from fusion_jax.config import DataConfig
from fusion_jax.errors import InputError
from fusion_jax.runs.loading import TrainedModel, load_run, selection_of

logger = logging.getLogger(__name__)


def in_direction(
  run: TrainedModel, name: str, source: str = '', target: str = ''
) -> TrainedModel:
  """Return a run that translates in one direction alone.

  Its source tokenizer puts the tags of the direction before every line, and
  no tag can occur in a translation.
  """
  data = run.config.data
  source, target = choose_direction(data, name, source, target)
  pieces = {each: run.target_tokenizer.id_of(each) for each in data.all_tags}
  tags = tuple(piece for piece, number in pieces.items() if number is not None)
  decoding = dataclasses.replace(
    run.config.decoding, forbidden=run.config.decoding.forbidden + tags
  )
  config = dataclasses.replace(
    run.config, data=data.between(source, target), decoding=decoding
  )
  return dataclasses.replace(
    run,
    config=config,
    source_tokenizer=run.source_tokenizer.tagged(data.tags(source, target)),
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
  known = [(each.source_language, each.target_language) for each in every]
  asked = ' '.join(
    f'--{side}_language={language}'
    for side, language in (('source', source), ('target', target))
    if language
  )
  fitting = [p for p in known if source in ('', p[0]) and target in ('', p[1])]
  if len(fitting) == 1:
    return fitting[0]
  listed = ', '.join(each.name for each in every)
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
      '%s was not trained to translate from %s to %s: zero-shot',
      name,
      source,
      target,
    )
    return source, target
  raise InputError(f'{asked}: {name} translates {listed}')
