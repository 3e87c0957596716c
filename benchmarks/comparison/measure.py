"""One run: trained by train.py, translated by decode.py, scored."""

import itertools
import math
import shutil
import statistics
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import as_flags, circumstances
from benchmarks.comparison.contestants import Contestants, count
from benchmarks.comparison.experiment import (
  Experiment,
  Folders,
  changes,
  experiment,
  overrides,
)
from benchmarks.comparison.plan import Run
from benchmarks.comparison.recipe import Recipe
from benchmarks.comparison.texts import Text
from benchmarks.programs import metrics, start, train
from benchmarks.schemes import BASELINE
from benchmarks.serving import ROOT
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import changed
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.evaluation.systems import read_file
from fusion_jax.metrics import corpus_scores

_DEVICE = 'import jax; print(jax.devices()[0].device_kind, jax.device_count())'
# A run that only shows how long an update takes.
_TIMING = {
  'name': 'timing',
  'optimizer.schedule': 'constant',
  'training.steps': 60,
  'training.log_every': 10,
  'training.save_every': 60,
  'training.validate_every': 60,
}
_SCORES = ('bleu', 'chrf', 'bleu_signature', 'chrf_signature')


class Finished(NamedTuple):
  """What is kept of a run: numbers, and the translations of each test set."""

  numbers: dict[str, Any]
  translations: dict[str, Sequence[str]]


class Runner:
  """Trains, translates and scores runs of a recipe, one at a time."""

  def __init__(
    self,
    recipe: Recipe,
    contestants: Contestants,
    folders: Folders,
    tests: Mapping[str, Text],
    hardware: Mapping[str, Any],
    keep_open: Sequence[int],
    deadline: float | None,
    kept: Collection[str],
  ):
    """Takes what all runs share; `kept` are phases whose checkpoints stay."""
    self._recipe, self._contestants = recipe, contestants
    self._folders, self._tests = folders, tests
    self._hardware = hardware
    self._keep_open, self._deadline = keep_open, deadline
    self._kept = kept

  def __call__(self, run: Run, rate: float | None) -> Finished:
    """Does what is left of a run."""
    begin, workdir = time.monotonic(), self._folders.run(run)
    unbroken = not workdir.exists()
    made = self._experiment(run, rate)
    self._check_start(run)
    self._train(made.config, workdir)
    tests = {} if run.phase == 'tuning' else self._tests
    translations = {
      name: self._translate(workdir, name, text) for name, text in tests.items()
    }
    numbers = self._trained(run, made, workdir) | {
      'fusion_rate': rate,
      'tests': self._scores(translations),
    }
    spent = time.monotonic() - begin
    updates = made.config.training.steps * numbers['seconds_an_update']
    numbers['other_seconds'] = spent - updates if unbroken else None
    return Finished(numbers | self._circumstances(), translations)

  def clean(self, run: Run) -> None:
    """Deletes the checkpoints of a finished run, unless its phase is kept."""
    if run.phase not in self._kept:
      checkpoints = self._folders.run(run) / 'checkpoints'
      shutil.rmtree(checkpoints, ignore_errors=True)

  def time_plain(self) -> float:
    """Seconds of an update of the plain model, of a run of a few of them."""
    run = Run('plain', self._recipe.norms[0], BASELINE, 0)
    workdir = self._folders.runs[run.norm] / 'timing'
    config = changed(self._experiment(run, None).config, _TIMING)
    logged = metrics(workdir, 'train')
    if not logged or logged[-1]['step'] != config.training.steps:
      self._train(config, workdir)
    return seconds_an_update(workdir)

  def _experiment(self, run: Run, rate: float | None) -> Experiment:
    parts = self._recipe, self._contestants, self._folders
    return experiment(run, *parts, rate)

  def _check_start(self, run: Run) -> None:
    if run.start is None:
      return
    trained = self._folders.run(run.start)
    if not (trained / 'checkpoints').is_dir():
      raise InputError(
        f'{trained}: no checkpoints to start from, though '
        f'{run.start.name} is finished; bring them back, or delete its result '
        'to train it again'
      )

  def _train(self, config: ExperimentConfig, workdir: Path) -> None:
    flags = overrides(config, self._recipe)
    train(self._recipe.config, workdir, flags, **self._options())
    validations = metrics(workdir, 'valid')
    if not validations or validations[-1]['step'] != config.training.steps:
      raise CheckFailed('it was stopped before its last update')

  def _translate(self, workdir: Path, name: str, text: Text) -> Sequence[str]:
    output = workdir / f'{name}.txt'
    if not output.exists():
      files = {'workdir': workdir, 'input': text.source, 'output': output}
      flags = files | {'step': 'last', 'average': self._recipe.average}
      start('decode.py', *as_flags(flags), **self._options())
    return read_file(str(output)).lines

  def _options(self) -> dict[str, Any]:
    """How programs are started: for as long as there is time."""
    left = self._deadline and max(self._deadline - time.monotonic(), 0)
    return {'seconds': left, 'keep_open': self._keep_open}

  def _trained(
    self, run: Run, made: Experiment, workdir: Path
  ) -> dict[str, Any]:
    """What the training says of itself."""
    config, last = made.config, metrics(workdir, 'train')[-1]
    perplexity = metrics(workdir, 'valid')[-1]['perplexity']
    telemetry = metrics(workdir, 'fusion')[-1:]
    return {
      'parameters': count(config),
      'changes': changes(config, self._recipe.phases[run.phase]),
      'start': made.start,
      'updates': config.training.steps,
      'seconds_an_update': seconds_an_update(workdir),
      # None where it is not finite.
      'validation_nll': None if perplexity is None else math.log(perplexity),
      'encoder_gradient_norms': [
        last[f'encoder_gradient_norm_{layer}']
        for layer in range(1, config.model.encoder_layers + 1)
      ],
      'telemetry': {
        name: value
        for line in telemetry
        for name, value in line.items()
        if name not in ('step', 'kind')
      },
    }

  def _circumstances(self) -> dict[str, Any]:
    """Hardware, versions, date and the commit of the code."""
    described = subprocess.run(
      ['git', 'describe', '--always', '--dirty', '--abbrev=40'],
      cwd=ROOT,
      capture_output=True,
      text=True,
    )
    commit = {'commit': described.stdout.strip()}
    return circumstances() | self._hardware | commit

  def _scores(
    self, translations: Mapping[str, Sequence[str]]
  ) -> dict[str, dict[str, Any]]:
    language = self._recipe.phases['plain'].data.target_language
    found = {}
    for name, lines in translations.items():
      scores = corpus_scores(lines, self._tests[name].references, language)
      found[name] = {key: getattr(scores, key) for key in _SCORES}
    return found


def seconds_an_update(workdir: Path) -> float:
  """The median over the progress lines of a run, compilation left out.

  A line has the seconds since the start of the run; the first one has most of
  the compilation in it, and counts only where it is the only one.
  """
  lines = metrics(workdir, 'train')
  laps = [
    (line['seconds'] - before['seconds']) / (line['step'] - before['step'])
    for before, line in itertools.pairwise(lines)
  ]
  first = lines[0]
  return statistics.median(laps or [first['seconds'] / first['step']])


def hardware() -> dict[str, Any]:
  """Processor, cores and the accelerator that the programs see."""
  here = circumstances()
  device = start('-c', _DEVICE).strip()
  return {'cpu': here['cpu'], 'cores': here['cores'], 'device': device}
