"""What a report tells of one run, gathered from its directory."""

import argparse
import dataclasses
import importlib.metadata
import os
import platform
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from fusion_jax.analysis.curves import curves
from fusion_jax.analysis.report.text import translation
from fusion_jax.analysis.report.views import Card, cards
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.config import ExperimentConfig
from fusion_jax.errors import InputError
from fusion_jax.metrics import Scores, corpus_scores
from fusion_jax.models.transformer import Parameters
from fusion_jax.runs.kept_corpus import read_report
from fusion_jax.runs.run_directory import read_config, read_tokenizers

# Flags of the report that a command for one view needs too.
_SHARED = (
  'source',
  'target',
  'lines',
  'tags',
  'tags_side',
  'step',
  'average',
  'average_of',
  'parameters',
  'source_language',
  'target_language',
)
_PACKAGES = (
  'fusion_jax',
  'jax',
  'jaxlib',
  'flax',
  'optax',
  'orbax-checkpoint',
  'grain',
  'sentencepiece',
  'sacrebleu',
  'numpy',
  'scipy',
  'matplotlib',
)
_LAYER = re.compile(r'layers?(_\d+)?')


@dataclasses.dataclass(frozen=True)
class RunReport:
  """All that is told of a run.

  Attributes:
    name: that tells it from the others of the page.
    workdir: the run directory.
    steps: of the checkpoints that its parameters are the mean of.
    config: of the run, with all of its directions.
    languages: source and target, of the direction that is looked at.
    corpus: 'pairs' and 'kept' of the training text; {} where not known.
    vocabularies: pieces of the source and the target tokenizer.
    parameters: how many each part has.
    last: the last line of kind 'train' in the metrics.
    curves: of the training.
    cards: its views.
    translations: of the text, line for line.
    scores: of them.
    command: that looks at the run; a view's name is to be put in.
  """

  name: str
  workdir: str
  steps: tuple[int, ...]
  config: ExperimentConfig
  languages: tuple[str, str]
  corpus: Mapping[str, int]
  vocabularies: tuple[int, int]
  parameters: Mapping[str, int]
  last: Mapping[str, Any]
  curves: Mapping[str, Any]
  cards: tuple[Card, ...]
  translations: tuple[str, ...]
  scores: Scores
  command: str


def gather(
  subject: RunWithText, name: str, arguments: argparse.Namespace
) -> RunReport:
  """Translates, scores and looks at a run.

  Args:
    subject: the run and its text.
    name: that tells it from others.
    arguments: of the report; with `all` slow views are made too.

  Raises:
    InputError: nothing was logged, or the run directory cannot be written.
  """
  run, data = subject.run, subject.run.config.data
  numbers = curves(subject)
  folder = subject.workdir / 'analysis'
  try:
    folder.mkdir(exist_ok=True)
  except OSError as error:
    raise InputError(f'{folder}: {error.strerror}') from error
  translations = translation(subject, folder)
  references = [reference for _, reference in subject.lines]
  config = read_config(subject.workdir)
  tokenizers = read_tokenizers(subject.workdir)
  return RunReport(
    name,
    str(subject.workdir),
    run.steps,
    config,
    (data.source_language, data.target_language),
    training_pairs(subject.workdir),
    tuple(each.vocabulary.size for each in tokenizers),
    parameters_by_part(run.parameters),
    subject.of_kind('train')[-1],
    numbers,
    tuple(cards(subject, folder, arguments.all)),
    tuple(translations),
    corpus_scores(translations, references, data.target_language),
    command(subject.workdir, arguments),
  )


def command(workdir: Path, arguments: argparse.Namespace) -> str:
  """What makes a view of a run, with the flags of the report.

  Args:
    workdir: the run directory.
    arguments: of the report.

  Returns:
    A command line with VIEW where the name of the view goes.
  """
  flags = {name: getattr(arguments, name) for name in _SHARED}
  defaults = {
    'lines': 0,
    'tags_side': 'source',
    'step': 'best',
    'average': 1,
    'average_of': 'last',
  }
  given = [
    f'--{name}={value}'
    for name, value in flags.items()
    if value not in (None, '') and value != defaults.get(name)
  ]
  words = ['python', '-m', 'fusion_jax.analysis', 'VIEW']
  return shlex.join([*words, f'--workdir={workdir}', *given])


def parameters_by_part(parameters: Parameters) -> dict[str, int]:
  """How many parameters each part of the model has.

  Args:
    parameters: of a run.

  Returns:
    By 'encoder layers / self_attention', 'encoder / read_out' and the like, as
    the model names them; layers together.
  """
  counts = Counter()
  for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
    names = [part.key for part in path[:-1]]
    names = [name for name in names if not _LAYER.fullmatch(name)] or ['']
    inside = any(_LAYER.fullmatch(part.key) for part in path[:-1])
    if len(path) == 1:
      names = [path[0].key]
    elif inside:
      names[0] += ' layers'
    counts[' / '.join(names[:2])] += leaf.size
  return dict(counts)


def training_pairs(workdir: Path) -> dict[str, int]:
  """Pairs of the training text.

  Args:
    workdir: Run directory.

  Returns:
    'pairs' that were read and 'kept'; {} where the run does not say it.
  """
  match read_report(workdir):
    case {'splits': {'train': {'pairs': int(pairs), 'kept': int(kept)}}}:
      return {'pairs': pairs, 'kept': kept}
  return {}


def environment() -> dict[str, str]:
  """Machine and versions of this process."""
  devices = jax.devices()
  versions = {}
  for name in _PACKAGES:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return {
    'Python': platform.python_version(),
    'system': platform.platform(),
    'processor cores': str(os.cpu_count()),
    'devices': f'{len(devices)} x {devices[0].device_kind}',
  } | versions
