"""Beam search with random parameters, beside CTranslate2, one after another."""

import functools
import importlib.util
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.acceleration.place import Place
from benchmarks.acceleration.work import Part, Piece
from benchmarks.common import cells, table
from benchmarks.decode_task import LENGTH, Task
from benchmarks.train_throughput import rates

_FULL = Task(1, 512, 512), Task(4, 512, 512), Task(1, 1, 8), Task(4, 1, 8)
_TINY = (Task(4, 8, 8),)
_OURS = {
  f'fusion_jax {dtype}': ('benchmarks.fusion_jax_decode', f'--dtype={dtype}')
  for dtype in ('bfloat16', 'float32')
}
_PEER = 'benchmarks.ctranslate2_decode'
# Timed passes.
_ROUNDS = 5


def part(place: Place) -> Part:
  """A piece for each program and task."""
  pieces = [
    Piece(
      f'search {title}',
      0.4 if place.tiny else 0.7,
      functools.partial(_measure, place, task, title, command),
      '' if name in _OURS else _missing(place),
    )
    for name, command in (_OURS | _peers(place)).items()
    for task in (_TINY if place.tiny else _FULL)
    for title in [f'{name}, {_title(task)}']
  ]
  return Part(
    'beam search beside CTranslate2',
    pieces,
    functools.partial(place.measured, 'search'),
    _table,
  )


def _peers(place: Place) -> dict[str, tuple[str, ...]]:
  """CTranslate2 on the device, or on the CPU for tiny sizes."""
  gpu = place.device['platform'] == 'gpu'
  device = 'cuda' if gpu else 'cpu'
  flags = f'--device={device}', f'--model={place.folder / "random_model"}'
  return {
    f'CTranslate2 {dtype}': (_PEER, *flags, f'--compute={dtype}')
    for dtype in (('float16', 'float32') if gpu else ('float32',))
  }


def _missing(place: Place) -> str:
  if place.device['platform'] not in ('cpu', 'gpu'):
    return f'CTranslate2 knows no {place.device["platform"]}'
  if importlib.util.find_spec('ctranslate2') is None:
    return 'the package ctranslate2 is not installed'
  return ''


def _measure(
  place: Place, task: Task, title: str, command: tuple[str, ...], seconds: float
) -> bool:
  size = '--size=tiny' if place.tiny else '--size=base'
  if command[0] == _PEER:
    _export(place, size, seconds)
  answers = place.start(
    f'search {title}',
    *('-m', *command, size, *task.flags),
    requests='1\n' * (1 if place.tiny else _ROUNDS),
    seconds=seconds,
  )
  lines = [json.loads(line) for line in answers.splitlines()]
  found = rates(lines, task.output_tokens)
  found['output_tokens_per_second'] = found.pop('rates')
  place.add('search', title, found)
  return True


def _export(place: Place, size: str, seconds: float) -> None:
  """Makes the model of CTranslate2 where it is not there yet."""
  folder = place.folder / 'random_model'
  if not folder.exists():
    unfinished = Path(f'{folder}.unfinished')
    shutil.rmtree(unfinished, ignore_errors=True)
    command = '-m', 'benchmarks.fusion_jax_decode', f'--export={unfinished}'
    place.start('search random model', *command, size, seconds=seconds)
    unfinished.rename(folder)


def _title(task: Task) -> str:
  return f'{task.name} of {task.sentences}' if task.rows > 1 else task.name


def _table(found: Mapping[str, Any]) -> str:
  rows = [
    (name, *cells(own['output_tokens_per_second']), own.get('device', ''))
    for name, own in found.items()
  ]
  header = ('output tokens/s', 'median', 'min', 'max', 'says it runs on')
  note = f'{LENGTH} tokens a sentence, from ids to ids on the host'
  return f'{table(header, rows)}\n{note}'
