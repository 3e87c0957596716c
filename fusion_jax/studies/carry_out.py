"""Runs of a study: trained, translated, scored, each in a process of its own.

A run has a folder in WORKDIR/runs. Its result.json is written last: where it
is, the run is finished. Who works in a folder holds its lock, so that several
commands share a study.
"""

import contextlib
import datetime
import gzip
import importlib.metadata
import json
import logging
import platform
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from fusion_jax.bounds import choice_fault
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import changed
from fusion_jax.config.serialization import to_dict
from fusion_jax.data.corpora import open_corpus
from fusion_jax.errors import InputError
from fusion_jax.files import read_json, write_whole
from fusion_jax.runs.directory import read_metrics
from fusion_jax.studies.plan import Run, Study, operations, parameters

logger = logging.getLogger(__name__)

# Subwords of the longest line whose loss is computed.
_LONGEST = 1_024
# Exit code of a worker whose run another process has.
BUSY = 3


class Folder:
  """What a study keeps below its folder."""

  def __init__(self, workdir: Path):
    self.workdir = workdir.absolute()

  def of(self, run: Run) -> Path:
    return self.workdir / 'runs' / run.name

  def result(self, run: Run) -> dict[str, Any] | None:
    """Return the numbers of a finished run."""
    path = self.of(run) / 'result.json'
    return read_json(path, dict[str, Any]) if path.is_file() else None

  def is_finished(self, run: Run) -> bool:
    return (self.of(run) / 'result.json').is_file()

  def failure(self, run: Run) -> str:
    """Return why a run failed the last time; '' if it did not."""
    path = self.of(run) / 'failed.txt'
    return path.read_text('utf-8').strip() if path.is_file() else ''

  def translations(self, run: Run, test: str) -> list[str]:
    path = self.of(run) / f'{file_name(test)}.txt.gz'
    return gzip.decompress(path.read_bytes()).decode().split('\n')[:-1]

  def losses(self, run: Run) -> dict[str, np.ndarray]:
    """Return [2, lines] for each text: nats and subwords."""
    with np.load(self.of(run) / 'losses.npz') as arrays:
      return {name: arrays[name] for name in arrays}

  def strangers(self, study: Study) -> list[str]:
    """Return the finished runs that the study file does not ask for."""
    runs = self.workdir / 'runs'
    found = {x.parent for x in runs.glob('*/*/result.json')}
    others = found - {self.of(run) for run in study.runs}
    return sorted(folder.relative_to(runs).as_posix() for folder in others)


def shown(test: str) -> str:
  """Return the name of a test set without its language and ending."""
  return test.split('.{lang}')[0]


def file_name(test: str) -> str:
  """Return the name of a test set's files."""
  return ''.join(x if x.isalnum() else '_' for x in shown(test))


def resolved(run: Run, study: Study, folder: Folder) -> ExperimentConfig:
  """Return the config of a run, with what the runs that it needs decided."""
  fields: dict[str, Any] = {'data.prepared': str(folder.workdir / 'prepared')}
  if run.trials:
    losses = {trial: folder.result(trial) or {} for trial in run.trials}
    best = min(run.trials, key=lambda trial: losses[trial]['validation_nll'])
    fields |= dict(best.choice)
  if run.timed:
    plain, other = (folder.result(timed) or {} for timed in run.timed)
    longer = other['seconds_an_update'] / plain['seconds_an_update']
    fields['training.steps'] = round(other['updates'] * longer)
  start = str(folder.of(run.start) / 'run') if run.start else run.origin
  config = changed(run.config, fields | {'training.init_from': start})
  # Two rows of the log tell the time of an update.
  every = min(config.training.log_every, max(1, config.training.steps // 2))
  return changed(config, {'training.log_every': every})


def carry_out(run: Run, study: Study, folder: Folder) -> None:
  """Do what is left of a run: train, translate, score; write its result."""
  import fusion_jax
  from fusion_jax.training import loop

  config, place = resolved(run, study, folder), folder.of(run)
  if code := loop.run(config, place / 'run'):
    raise SystemExit(code)  # It was stopped, and has saved.
  numbers = _of_training(config, place / 'run')
  if not run.choice:
    average = study.file.average
    model = fusion_jax.load(place / 'run', step='last', average=average)
    numbers['tests'] = _tests(model, study, config, place)
  text = json.dumps(numbers | circumstances(), indent=1)
  write_whole(place / 'result.json', text.encode())
  is_start = any(run == other.start for other in study.runs)
  if not study.file.keep_checkpoints and not is_start:
    shutil.rmtree(place / 'run/checkpoints')


def _tests(
  model: Any, study: Study, config: ExperimentConfig, place: Path
) -> dict[str, dict[str, Any]]:
  """Translate and score the test sets, and keep lines and losses."""
  from fusion_jax.metrics import corpus_scores, words_of

  words = words_of(config.data.target_language, config.decoding.bleu_tokenizer)
  numbers, losses = {}, {}
  for test in study.tests:
    pairs = open_corpus(test, config.data).read()
    sources, references = zip(*pairs, strict=True)
    begin = time.monotonic()
    lines = model.translate(sources)
    seconds = time.monotonic() - begin
    scores = corpus_scores(lines, references, words)
    of_test = scores._asdict() | {'lines': len(lines), 'seconds': seconds}
    del of_test['report']
    scored = model.score(sources, references, max_source_length=_LONGEST)
    losses[test] = np.array(
      [[-sum(x.tokens) for x in scored], [len(x.tokens) for x in scored]],
      np.float32,
    )
    of_test['nll'] = float(losses[test][0].sum() / losses[test][1].sum())
    if study.file.comet:
      from fusion_jax.cli.run import load_comet

      comet = load_comet(study.file.comet)
      said = str(comet(sources, lines, references))
      of_test['comet'] = float(said.split()[-1])
    numbers[test] = of_test
    text = ''.join(f'{line}\n' for line in lines).encode()
    packed = gzip.compress(text, mtime=0)
    write_whole(place / f'{file_name(test)}.txt.gz', packed)
  np.savez_compressed(place / 'losses.npz', allow_pickle=False, **losses)
  return numbers


def _of_training(config: ExperimentConfig, workdir: Path) -> dict[str, Any]:
  rows = read_metrics(workdir / 'metrics.jsonl')
  train, valid, fusion = (
    [row for row in rows if row['kind'] == kind]
    for kind in ('train', 'valid', 'fusion')
  )
  learned = fusion[-1] if fusion else {}
  return {
    'updates': valid[-1]['step'],
    'parameters': parameters(config),
    'operations': operations(config),
    'validation_nll': valid[-1]['loss'],
    'seconds_an_update': _seconds_an_update(train),
    'peak_memory': max(row['peak_memory'] for row in train),
    'curve': [[row['step'], row['loss']] for row in valid],
    'fusion': {k: v for k, v in learned.items() if k not in ('kind', 'step')},
    'config': to_dict(config),
  }


def _seconds_an_update(train: list[dict[str, Any]]) -> float:
  """Return the time of an update after the first row, in which XLA compiles."""
  first, last = train[0], train[-1]
  if len(train) == 1:
    first = {'seconds': 0, 'step': 0}
  seconds = last['seconds'] - first['seconds']
  return seconds / (last['step'] - first['step'])


def circumstances() -> dict[str, Any]:
  """Return where and when a run was made."""
  import jax

  names = ('fusion_jax', 'jax', 'flax', 'sacrebleu')
  return {
    'date': datetime.datetime.now().astimezone().isoformat(timespec='seconds'),
    'device': f'{jax.device_count()} x {jax.devices()[0].device_kind}',
    'processor': platform.processor() or platform.machine(),
    'versions': {name: importlib.metadata.version(name) for name in names},
  }


@contextlib.contextmanager
def held(folder: Path) -> Iterator[bool]:
  """Hold the lock of a run; gives whether it could be had."""
  folder.mkdir(parents=True, exist_ok=True)
  lock = filelock.FileLock(folder / 'lock')
  with contextlib.suppress(filelock.Timeout):
    lock.acquire(timeout=0)
  try:
    yield lock.is_locked
  finally:
    lock.release()


def work(study: Study, folder: Folder, name: str) -> int:
  """Carry out the run of a name; return the exit code of its process."""
  runs = {run.name: run for run in (study.timing, *study.runs)}
  if name not in runs:
    raise InputError(f'--run: {choice_fault(name, runs)}')
  run = runs[name]
  with held(folder.of(run)) as mine:
    if not mine:
      return BUSY
    if not folder.is_finished(run):
      carry_out(run, study, folder)
  return 0
