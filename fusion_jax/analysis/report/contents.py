"""The content of a report on one run: its texts, scores and views."""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import logging
import os
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fusion_jax import figures
from fusion_jax.analysis.curves import curves
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.views import View, keep, kept, look_at, views_of
from fusion_jax.config import ExperimentConfig
from fusion_jax.data.tokenizer import log_unreachable
from fusion_jax.errors import InputError
from fusion_jax.evaluation.compare import translate
from fusion_jax.evaluation.significance import paired_test, statistics_of
from fusion_jax.files import write_errors
from fusion_jax.metrics import Scores, Words, corpus_scores
from fusion_jax.models.transformer import Parameters
from fusion_jax.runs import directory

logger = logging.getLogger(__name__)

_PACKAGES = (
  'fusion_jax jax jaxlib flax optax orbax-checkpoint grain sentencepiece '
  'sacrebleu numpy scipy matplotlib'
)
_LAYER = re.compile(r'layers?(_\d+)?')
# Samples of the bootstrap, as sacreBLEU has them.
_SAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Card:
  """A view of a run: content of VIEW.json, or why it was not made."""

  view: View
  content: Mapping[str, Any] | None = None
  panels: tuple[figures.Picture, ...] = ()
  missing: str = ''


@dataclasses.dataclass(frozen=True)
class RunReport:
  """All that a report shows of a run.

  Attributes:
    steps: Steps of the checkpoints whose mean its parameters are.
    config: Config of the run, with all of its directions.
    languages: Source and target language of the direction looked at.
    corpus: 'pairs' and 'kept' of the training text; {} if unknown.
    last: Last line of kind 'train' in the metrics.
    code: Version that trained it; '' if not recorded.
    interval: 95 % interval of BLEU, by the bootstrap.
  """

  name: str
  workdir: str
  steps: tuple[int, ...]
  config: ExperimentConfig
  languages: tuple[str, str]
  corpus: Mapping[str, int]
  vocabularies: tuple[int, ...]
  parameters: Mapping[str, int]
  last: Mapping[str, Any]
  code: str
  curves: Mapping[str, Any]
  cards: tuple[Card, ...]
  translations: tuple[str, ...]
  scores: Scores
  interval: tuple[float, float]


def gather(
  analysed: RunWithText, name: str, arguments: argparse.Namespace
) -> RunReport:
  """Translate and score the text with a run, and collect the run's views."""
  run, data, workdir = analysed.run, analysed.run.config.data, analysed.workdir
  numbers, folder = curves(analysed), workdir / 'analysis'
  with write_errors(folder):
    folder.mkdir(exist_ok=True)
  translations = translation(analysed, folder)
  references = [reference for _, reference in analysed.lines]
  log_unreachable(references, run.target_tokenizer, f'{name}, references')
  return RunReport(
    name,
    str(workdir),
    run.steps,
    directory.read_config(workdir),
    (data.source_language, data.target_language),
    training_pairs(workdir),
    tuple(
      tokenizer.vocabulary.size
      for tokenizer in directory.read_tokenizers(workdir)
    ),
    parameters_by_part(run.parameters),
    analysed.of_kind('train')[-1],
    directory.read_version(workdir),
    numbers,
    tuple(cards(analysed, folder, arguments.all)),
    tuple(translations),
    corpus_scores(translations, references, run.target_words),
    bleu_interval(translations, references, run.target_words),
  )


def bleu_interval(
  translations: Sequence[str], references: Sequence[str], words: Words
) -> tuple[float, float]:
  """Return the 95 % interval of BLEU over bootstrap samples of the lines."""
  (counts,) = statistics_of([translations], [references], words, names=['BLEU'])
  systems = {'own': counts['BLEU']}
  _, tested = paired_test('BLEU', words, 1, systems, 'bs', _SAMPLES)
  mean, half = tested['own'].mean or 0.0, tested['own'].interval or 0.0
  return max(mean - half, 0.0), min(mean + half, 100.0)


def translation(analysed: RunWithText, folder: Path) -> list[str]:
  """Translate the text, or read the kept translation of the same inputs."""
  path = folder / 'translation.json'
  if before := kept(path, analysed):
    logger.info('translation found: %s', path)
    return before['translations']
  lines = translate(analysed.run, [source for source, _ in analysed.lines])
  keep(path, analysed, {'translations': lines}, analysed.digest)
  return lines


def parameters_by_part(parameters: Parameters) -> dict[str, int]:
  """Count the parameters of each part of the model."""
  counts: Counter[str] = Counter()
  for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
    modules = [part.key for part in path[:-1]] or [path[0].key]
    names = [name for name in modules if not _LAYER.fullmatch(name)]
    if len(names) < len(modules):
      names[0] += ' layers'
    counts[' / '.join(names[:2])] += leaf.size
  return dict(counts)


def training_pairs(workdir: Path) -> dict[str, int]:
  """Return the numbers of pairs of the training text."""
  match directory.read_report(workdir):
    case {'splits': {'train': {'pairs': int(pairs), 'kept': int(kept)}}}:
      return {'pairs': pairs, 'kept': kept}
  return {}


def environment() -> dict[str, str]:
  """Return the machine and the versions of this process."""
  devices = jax.devices()
  about = {
    'Python': platform.python_version(),
    'system': platform.platform(),
    'processor cores': str(os.cpu_count()),
    'devices': f'{len(devices)} x {devices[0].device_kind}',
  }
  for name in _PACKAGES.split():
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      about[name] = importlib.metadata.version(name)
  return about


def cards(analysed: RunWithText, folder: Path, slow: bool) -> Iterator[Card]:
  """Yield all views that apply to the run's model, in the order of the table.

  Views that read a text are taken from the folder if they were made of the same
  inputs; the others take seconds, and are always made.
  """
  for view in views_of(analysed.run.config.model):
    files = [folder / f'{view.name}.{kind}' for kind in ('json', 'svg', 'png')]
    content: Mapping[str, Any] | None = None
    if view.reads == 'text' and all(file.is_file() for file in files):
      content = kept(files[0], analysed)
    if content is None and view.slow and not slow:
      yield Card(view, missing='It takes minutes.')
      continue
    try:
      if content is None:
        content = look_at(view, analysed, folder)
        logger.info('%s: %s', view.name, files[0])
    except InputError as error:
      logger.warning('%s is left out: %s', view.name, error)
      yield Card(view, missing=f'It could not be made: {error}.')
      continue
    # Drawn again, as its file has all panels side by side.
    drawn = view.draw(content['numbers'])
    yield Card(view, content, tuple(figures.as_panels(drawn)))
