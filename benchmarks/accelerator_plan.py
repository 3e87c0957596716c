"""What is measured on an accelerator: the rows of its plan.

A row prepares a program, ours or another's, and gives a function that measures
it.
"""

import functools
import gzip
import importlib.util
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import sacrebleu

import fusion_jax
from benchmarks import common, contestants
from benchmarks.kernels import device_events, kernels, profile
from benchmarks.schemes import schemes
from benchmarks.serving import timed
from benchmarks.side_by_side import Program, Worker
from benchmarks.sizes import SIZES, Size, Task
from fusion_jax.config.flags import load_config
from fusion_jax.config.presets import changed
from fusion_jax.errors import first_line
from fusion_jax.startup import start_logging
from fusion_jax.tools.export.ctranslate2 import export

DATA = common.data_of(__file__)
# A timing has a few updates, which the host starts without waiting.
_UPDATES, _ROUNDS = 4, 5

# Measures a row within some seconds.
Measure = Callable[[float], dict[str, Any]]


class TimeIsOver(Exception):
  """The minutes ended before a row did."""


class Row(NamedTuple):
  """One figure of the plan.

  `prepare` compiles what is measured, within some seconds; `compiles` are the
  seconds that this takes one core of an H100's host, `measures` those of the
  measuring. The speed is a multiple of that of the row `base`, which the paper
  printed as `paper`. `starts`: another program is started. `missing` is what
  the row needs and is not there.
  """

  name: str
  prepare: Callable[[float], Measure]
  compiles: float
  measures: float = 5.0
  base: str = ''
  paper: float | None = None
  starts: bool = False
  missing: str = ''


class Place(NamedTuple):
  """Where the rows are measured; `platform` is that of JAX."""

  folder: Path
  data: Path | None
  tiny: bool
  platform: str

  def size(self, name: str, rows: int = 64, scheme: str = '') -> Size:
    """A size of the plan, or a tiny one in its place."""
    if self.tiny:
      # Few layers compile in seconds, but schemes need some to fuse.
      layers = 4 if scheme == 'multi_layer_3' else 2 if scheme else 1
      few = {'rows': rows // 16, 'length': 8, 'layers': layers}
      return SIZES['tiny']._replace(**few)
    return SIZES[name]._replace(rows=rows, length=128, loss_chunk=4_096)

  def changes(self, scheme: str) -> dict[str, Any]:
    """What a scheme changes in the model of a size."""
    if not scheme:
      return {}
    layers = self.size('base', scheme=scheme).layers
    return {'model.norm': 'pre', **schemes(layers)[scheme].row}

  def missing(self, program: str, there: bool) -> str:
    if self.platform not in ('cpu', 'gpu'):
      return f'{program} knows no {self.platform}'
    return '' if there else f'{program} is not installed'


def plan(place: Place) -> list[Row]:
  """Return all rows in the order of what they tell."""
  kernel = 'cudnn' if place.platform == 'gpu' else 'xla'
  both = kernel, 'plain'
  many = 8 if place.tiny else 128
  tasks = [
    Task(beam, rows, max(rows, 4)) for rows in (many, 1) for beam in (4, 1)
  ]
  model = functools.cache(functools.partial(_exported, place))
  return [
    *(_step(place, 'base', 64, form) for form in ('plain', kernel)),
    *(_step(place, 'base', rows, form) for rows in (256, 512) for form in both),
    *(_step(place, 'base', 64, f'{form} packed') for form in both),
    *(_step(place, 'big', rows, form) for rows in (64, 256) for form in both),
    *(_pytorch(place, 'base', rows) for rows in (64, 256, 512)),
    *(_pytorch(place, 'big', rows) for rows in (64, 256)),
    *(_search(place, task) for task in tasks),
    *(_ctranslate2(place, task, model) for task in tasks),
    *(
      row for name in DATA['schemes'] for row in _scheme(place, name, tasks[0])
    ),
    Row(
      'multi30k',
      lambda _: functools.partial(_multi30k, place),
      compiles=0,
      measures=30,
      missing='' if place.data else 'no --data',
    ),
  ]


def _scheme(place: Place, name: str, task: Task) -> tuple[Row, Row]:
  """Step and search of a scheme, beside those of the plain model."""
  printed = schemes(SIZES['base'].layers)[name]
  step = _step(place, 'base', 64, 'plain', name)
  search = _search(place, task, name)
  return (
    step._replace(name=f'{name} step', base=step.name, paper=printed.train),
    search._replace(
      name=f'{name} search', base=search.name, paper=printed.decode
    ),
  )


def _step(
  place: Place, name: str, rows: int, form: str, scheme: str = ''
) -> Row:
  """A training step; its form is an attention and perhaps 'packed'."""
  size = place.size(name, rows, scheme)
  attention, _, packed = form.partition(' ')
  fields = place.changes(scheme) | {
    'model.compute_dtype': 'bfloat16',
    'model.attention_implementation': attention,
  }
  make = contestants.packed_batches if packed else contestants.random_batches

  def prepare(_: float) -> Measure:
    config = changed(contestants.experiment(size), fields)
    step = contestants.FusionJaxStep(size, config, make(size), _UPDATES)
    # The products of cuDNN's kernel are not in the traced program.
    facts = {} if scheme else {'gflop': size.gflop}
    return lambda _: _measured(step) | facts | {'profile': _profile(step)}

  return Row(f'{name} {rows} {form}', prepare, 45 if name == 'base' else 90)


def _search(place: Place, task: Task, scheme: str = '') -> Row:
  size, changes = place.size('base', scheme=scheme), place.changes(scheme)

  def prepare(_: float) -> Measure:
    search = contestants.FusionJaxSearch(size, task, 'bfloat16', changes)
    facts = {'target_tokens': task.output_tokens}
    return lambda _: _measured(search, 1) | facts

  return Row(f'search {task.name}', prepare, 20)


def _measured(
  program: contestants.FusionJaxStep | contestants.FusionJaxSearch,
  updates: int = _UPDATES,
) -> dict[str, Any]:
  program.step()
  seconds = [timed(program.step) / updates for _ in range(_ROUNDS)]
  return {'seconds': common.spread(seconds)} | program.report()


def _profile(step: contestants.FusionJaxStep) -> dict[str, Any]:
  """The kernels of a timing; a device may allow none to be seen."""
  parts = {moved.instruction.name: moved.part for moved in step.traffic}
  try:
    return kernels(device_events(profile(step.step)), parts, _UPDATES)
  except Exception as error:
    return {'error': first_line(error)}


def _pytorch(place: Place, name: str, rows: int) -> Row:
  in_peers = common.PEERS_PYTHON.exists()
  there = in_peers or importlib.util.find_spec('torch') is not None
  size = place.size(name, rows)
  flags = {
    'size': 'tiny' if place.tiny else name,
    'rows': size.rows,
    'length': size.length,
    'updates': _UPDATES,
    'dtype': 'bfloat16',
    'device': 'cuda' if place.platform == 'gpu' else 'cpu',
  }
  words = common.as_flags(flags) + ([] if place.tiny else ['--compile'])
  prepare = _started(
    'benchmarks.peers.pytorch_step',
    lambda: words,
    {'gflop': size.gflop, 'target_tokens': size.target_tokens},
    python=str(common.PEERS_PYTHON) if in_peers else sys.executable,
  )
  missing, base = place.missing('PyTorch', there), f'{name} {rows} plain'
  row = Row(f'PyTorch {name} {rows}', prepare, compiles=45, base=base)
  return row._replace(starts=True, missing=missing)


def _ctranslate2(place: Place, task: Task, model: Callable[[], Path]) -> Row:
  there = importlib.util.find_spec('ctranslate2') is not None
  gpu = place.platform == 'gpu'
  flags = {
    'size': 'tiny' if place.tiny else 'base',
    'device': 'cuda' if gpu else 'cpu',
    'compute': 'float16' if gpu else 'float32',
    **task._asdict(),
  }
  prepare = _started(
    'benchmarks.peers.ctranslate2_search',
    lambda: common.as_flags(flags | {'model': model()}),
    {'target_tokens': task.output_tokens},
    updates=1,
  )
  missing, base = place.missing('CTranslate2', there), f'search {task.name}'
  row = Row(f'CTranslate2 {task.name}', prepare, compiles=15, base=base)
  return row._replace(starts=True, missing=missing)


def _exported(place: Place) -> Path:
  folder = Path(tempfile.mkdtemp(dir=place.folder)) / 'model'
  with jax.default_device(jax.devices('cpu')[0]):
    export(contestants.random_run(place.size('base'), 'float32'), folder)
  return folder


def _started(
  module: str,
  flags: Callable[[], list[str]],
  facts: Mapping[str, Any],
  updates: int = _UPDATES,
  python: str = sys.executable,
) -> Callable[[float], Measure]:
  """How to prepare a row of another program."""

  def prepare(seconds: float) -> Measure:
    worker = Worker(Program(module, tuple(flags()), python), seconds)

    def measure(_: float) -> dict[str, Any]:
      answer = worker.ask(_ROUNDS)
      worker.close()
      steps = [taken / updates for taken in answer.pop('seconds')]
      return {'seconds': common.spread(steps)} | answer | facts

    return measure

  return prepare


def _multi30k(place: Place, seconds: float) -> dict[str, Any]:
  """Train by the config with packing, within the seconds, and translate."""
  start_logging()
  workdir = place.folder / 'multi30k'
  fields = {'data.root': str(place.data), 'data.batch.packing': True}
  fields |= {'data.batch.shapes': 1} | (DATA['tiny_run'] if place.tiny else {})
  config = changed(load_config('configs/multi30k.py:en-de'), fields)

  def over(*_: Any) -> None:
    raise TimeIsOver

  before = signal.signal(signal.SIGTERM, over)
  # A training saves on SIGTERM, and the next command goes on.
  timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
  timer.start()
  try:
    fusion_jax.train(config, workdir)
  finally:
    timer.cancel()
    signal.signal(signal.SIGTERM, before)
  model = fusion_jax.load(workdir, step='last', average=2 if place.tiny else 5)
  if model.step < config.training.steps:
    raise TimeIsOver
  source, target = (
    gzip.decompress(path.read_bytes()).decode().splitlines()
    for language in ('en', 'de')
    for path in [place.data / f'test_2016_flickr.{language}.gz']
  )
  return {
    'bleu': sacrebleu.corpus_bleu(model.translate(source), [target]).score
  }
