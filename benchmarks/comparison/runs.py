"""Runs of a comparison: trained, translated, scored, and kept as results."""

import gzip
import json
import math
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import common
from benchmarks.comparison.plan import (
  Contestants,
  Folders,
  Run,
  count,
  experiment,
)
from benchmarks.comparison.recipe import Recipe
from benchmarks.serving import ROOT
from fusion_jax.config import DataConfig, ExperimentConfig
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.evaluation.compare import check_lines, read_file
from fusion_jax.files import write_whole
from fusion_jax.metrics import corpus_scores

_DEVICE = 'import jax; print(jax.devices()[0].device_kind, jax.device_count())'
_SCORES = ('bleu', 'chrf', 'bleu_signature', 'chrf_signature')
_PLACES = ('name', 'data.root', 'data.prepared', 'training.init_from')
_IDENTITY = 'phase', 'norm', 'scheme', 'seed'
_FAILURES = subprocess.CalledProcessError, CheckFailed, InputError


class Text(NamedTuple):
  """A file to translate, and the lines that it should give."""

  source: Path
  references: tuple[str, ...]


def find_texts(
  patterns: Sequence[str], data: DataConfig, root: Path
) -> dict[str, Text]:
  """The texts of paths with {lang} and *, by their names."""
  source, target = data.source_language, data.target_language
  texts: dict[str, Text] = {}
  for pattern in patterns:
    paths = sorted(root.glob(pattern.format(lang=source)))
    if not paths:
      raise InputError(f'--data: {root / pattern}: no such file in {source}')
    for path in paths:
      other = path.with_name(path.name.replace(f'.{source}', f'.{target}'))
      name = path.relative_to(root).as_posix().split(f'.{source}')[0]
      translated = read_file(str(other))
      check_lines(read_file(str(path)), [translated])
      texts[name.replace('/', '_')] = Text(path, translated.lines)
  return texts


class Results:
  """The results of one recipe in a folder; it has a digest for each norm.

  FOLDER/PHASE/NORM/SCHEME-SEED.json, and SCHEME-SEED.TEST.txt.gz beside it. The
  JSON file is written last: where it is, the run is finished.
  """

  def __init__(self, folder: Path, digests: Mapping[str, str]):
    """Reads what is there."""
    self._folder, self._digests = folder, digests
    paths = sorted(folder.rglob('[!.]*.json'))
    self._runs = {
      path.relative_to(folder).as_posix().removesuffix('.json'): _read(
        path, digests
      )
      for path in paths
    }

  def __contains__(self, run: Run) -> bool:
    return run.name in self._runs

  def __getitem__(self, run: Run) -> dict[str, Any]:
    return self._runs[run.name]

  def __iter__(self) -> Iterator[dict[str, Any]]:
    return iter(self._runs.values())

  def add(
    self,
    run: Run,
    numbers: dict[str, Any],
    translations: Mapping[str, Sequence[str]],
  ) -> None:
    path = self._folder / f'{run.name}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    for test, lines in translations.items():
      text = ''.join(f'{line}\n' for line in lines)
      packed = gzip.compress(text.encode(), mtime=0)
      write_whole(self._translations(run, test), packed)
    fields = {name: getattr(run, name) for name in _IDENTITY}
    numbers = {'recipe': self._digests[run.norm], **fields, **numbers}
    common.write_results(path, numbers)
    self._runs[run.name] = numbers

  def translations(self, run: Run, test: str) -> tuple[str, ...]:
    return read_file(str(self._translations(run, test))).lines

  def _translations(self, run: Run, test: str) -> Path:
    return self._folder / f'{run.name}.{test}.txt.gz'


def _read(path: Path, digests: Mapping[str, str]) -> dict[str, Any]:
  try:
    numbers = json.loads(path.read_text())
    digest, wanted = numbers['recipe'], digests[numbers['norm']]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(f'{path}: not a result of a run: {error!r}') from None
  if digest != wanted:
    raise InputError(
      f'{path}: of recipe {digest[:12]}, not of {wanted[:12]} as asked for; '
      'give its recipe by --recipe, or another folder by --results'
    )
  return numbers


class Runner:
  """Trains, translates and scores runs of a recipe, one at a time."""

  def __init__(
    self,
    recipe: Recipe,
    contestants: Contestants,
    folders: Folders,
    tests: Mapping[str, Text],
    deadline: float | None,
    kept: Collection[str],
  ):
    """Takes what all runs share; `kept` are phases whose checkpoints stay."""
    self._recipe, self._contestants = recipe, contestants
    self._folders, self._tests = folders, tests
    self._deadline, self._kept = deadline, kept

  def __call__(
    self, run: Run, rate: float | None
  ) -> tuple[dict[str, Any], dict[str, Sequence[str]]]:
    """Does what is left of a run: numbers, and translations by test set."""
    workdir, recipe = self._folders.run(run), self._recipe
    config = experiment(run, recipe, self._contestants, self._folders, rate)
    self._check_start(run)
    common.train(recipe.config, config, workdir, self._left())
    validations = common.metrics(workdir, 'valid')
    if not validations or validations[-1]['step'] != config.training.steps:
      raise CheckFailed('it was stopped before its last update')
    tests = {} if run.phase == 'tuning' else self._tests
    translations = {
      name: self._translate(workdir, name, text) for name, text in tests.items()
    }
    made = common.changes(config, recipe.phases[run.phase])
    numbers = {
      'parameters': count(config),
      'changes': {key: made[key] for key in made if key not in _PLACES},
      'updates': config.training.steps,
      **trained(workdir, config),
      'fusion_rate': rate,
      'tests': self._scores(translations),
    }
    return numbers | _circumstances(), translations

  def clean(self, run: Run) -> None:
    """Deletes the checkpoints of a finished run, unless its phase is kept."""
    if run.phase not in self._kept:
      checkpoints = self._folders.run(run) / 'checkpoints'
      shutil.rmtree(checkpoints, ignore_errors=True)

  def _check_start(self, run: Run) -> None:
    if run.start is None:
      return
    before = self._folders.run(run.start)
    if not (before / 'checkpoints').is_dir():
      raise InputError(
        f'{before}: no checkpoints to start from, though {run.start.name} is '
        'finished; bring them back, or delete its result to train it again'
      )

  def _translate(self, workdir: Path, name: str, text: Text) -> Sequence[str]:
    output = workdir / f'{name}.txt'
    if not output.exists():
      flags = {'workdir': workdir, 'input': text.source, 'output': output}
      flags |= {'step': 'last', 'average': self._recipe.average}
      common.start('decode.py', *common.as_flags(flags), seconds=self._left())
    return read_file(str(output)).lines

  def _left(self) -> float | None:
    return self._deadline and max(self._deadline - time.monotonic(), 0)

  def _scores(
    self, translations: Mapping[str, Sequence[str]]
  ) -> dict[str, dict[str, Any]]:
    language = self._recipe.phases['plain'].data.target_language
    scores = {}
    for name, lines in translations.items():
      score = corpus_scores(lines, self._tests[name].references, language)
      scores[name] = {key: getattr(score, key) for key in _SCORES}
    return scores


def trained(workdir: Path, config: ExperimentConfig) -> dict[str, Any]:
  """What a finished training says of itself; a loss is None or finite."""
  last = common.metrics(workdir, 'train')[-1]
  telemetry = (common.metrics(workdir, 'fusion') or [{}])[-1]
  layers = range(1, config.model.encoder_layers + 1)
  return {
    'validation_nll': validation_nll(workdir),
    'encoder_gradient_norms': [
      last[f'encoder_gradient_norm_{layer}'] for layer in layers
    ],
    'telemetry': {
      name: telemetry[name]
      for name in telemetry
      if name not in ('step', 'kind')
    },
  }


def validation_nll(workdir: Path) -> float | None:
  """Nats a subword of the last validation; None where it is not finite."""
  perplexity = common.metrics(workdir, 'valid')[-1]['perplexity']
  return None if perplexity is None else math.log(perplexity)


def _circumstances() -> dict[str, Any]:
  """Hardware, versions, date and the commit of the code."""
  describe = ['git', 'describe', '--always', '--dirty', '--abbrev=40']
  described = subprocess.run(describe, cwd=ROOT, stdout=subprocess.PIPE)
  device = common.start('-c', _DEVICE).strip()
  commit = described.stdout.decode().strip()
  return common.circumstances() | {'device': device, 'commit': commit}


def carry_out(
  runs: Sequence[Run],
  results: Results,
  measure: Runner,
  limit: int | None = None,
  deadline: float | None = None,
) -> list[str]:
  """Does the runs that have no results yet; the names of those that failed."""
  failed, done = [], 0
  for number, run in enumerate(runs, start=1):
    if run in results:
      measure.clean(run)
      continue
    if done == limit or (deadline and time.monotonic() >= deadline):
      common.log('the rest is left for the next time: the same command resumes')
      break
    common.log(f'{run.name}: run {number} of {len(runs)}')
    try:
      _do(run, results, measure)
    except _FAILURES as error:
      common.log(f'{run.name}: failed: {error}')
      failed.append(run.name)
    except subprocess.TimeoutExpired:
      common.log(f'{run.name}: the time is over: the same command resumes')
      break
    done += 1
  return failed


def _do(run: Run, results: Results, measure: Runner) -> None:
  if run.start and run.start not in results:
    raise CheckFailed(f'it starts from {run.start.name}, which is not finished')
  results.add(run, *measure(run, chosen_rate(run, results)))
  measure.clean(run)


def chosen_rate(run: Run, results: Results) -> float | None:
  """The fusion's rate of a run: its own, or the best of its trials."""
  if not run.trials:
    return run.rate
  losses = {
    trial.rate: results[trial]['validation_nll']
    for trial in run.trials
    if trial in results
  }
  if not losses:
    raise CheckFailed('no run of its tuning is finished')
  worst = math.inf
  return min(losses, key=lambda x: worst if losses[x] is None else losses[x])
