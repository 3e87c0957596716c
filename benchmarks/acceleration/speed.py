"""Training steps of several sizes: tokens/s, use of the device, memory."""

import functools
import itertools
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.acceleration.peaks import peak_tflops, utilisation
from benchmarks.acceleration.place import Place
from benchmarks.acceleration.work import Part, Piece
from benchmarks.common import log, spread, table
from fusion_jax.errors import CheckFailed

_NO_MEMORY = 'RESOURCE_EXHAUSTED'
_PROGRAM = '-m', 'benchmarks.acceleration.training_steps'


class Steps(NamedTuple):
  """Batches of so many rows and positions, and how often they are timed.

  chunk: target tokens whose logits are held at a time, as the configs of large
    corpora have it.
  updates, rounds: of one timing, and timings.
  """

  rows: int
  length: int
  chunk: int
  updates: int
  rounds: int


_FULL = Steps(rows=64, length=128, chunk=4_096, updates=5, rounds=10)
_TINY = Steps(rows=8, length=16, chunk=64, updates=1, rounds=2)


def part(place: Place) -> Part:
  """A piece for each size, dtype and layout of the rows."""
  sizes = ('tiny',) if place.tiny else ('base', 'big')
  dtypes, layouts = ('bfloat16', 'float32'), ('dense', 'packed')
  pieces = [
    Piece(
      ' '.join(('speed', *setting)),
      0.4 if place.tiny else 1.2,
      functools.partial(_measure, place, *setting),
    )
    for setting in itertools.product(sizes, dtypes, layouts)
  ]
  return Part(
    'training steps: tokens/s, utilisation, compilation, memory',
    pieces,
    functools.partial(place.measured, 'speed'),
    functools.partial(_table, place.device),
  )


def _measure(
  place: Place, size: str, dtype: str, layout: str, seconds: float
) -> bool:
  deadline, name = time.monotonic() + seconds, f'{size} {dtype} {layout}'
  steps = _TINY if place.tiny else _FULL
  flags = {'size': size, 'dtype': dtype, 'layout': layout} | steps._asdict()
  requests = '1\n' * flags.pop('rounds')
  while True:
    command = *_PROGRAM, *(f'--{flag}={flags[flag]}' for flag in flags)
    try:
      answers = place.start(
        f'speed {name}',
        *command,
        requests=requests,
        seconds=max(deadline - time.monotonic(), 0),
        compiles_anew=True,
      )
      break
    except CheckFailed as error:
      if _NO_MEMORY not in str(error) or flags['rows'] == 1:
        raise
    flags['rows'] //= 2
    log(f'speed {name}: too little memory; now with {flags["rows"]} rows')
  found = summary(answers, steps.updates, place.device, dtype)
  found |= {'rows': flags['rows'], 'length': steps.length}
  place.add('speed', name, found | {'rows_wanted': steps.rows})
  return True


def summary(
  answers: str, updates: int, device: Mapping[str, Any], dtype: str
) -> dict[str, Any]:
  """Return seconds a step, rates and utilisation.

  Args:
    answers: lines of JSON of the contestant, the first without timings.
    updates: of each timing.
    device: of `benchmarks.acceleration.device`.
    dtype: of the activations.

  Returns:
    They, and what the contestant reports.
  """
  lines = [json.loads(line) for line in answers.splitlines()]
  seconds = [each / updates for line in lines for each in line['seconds']]
  report = {key: lines[-1][key] for key in lines[-1] if key != 'seconds'}
  float32 = dtype == 'float32'
  arithmetic = device['float32_products'] if float32 else dtype
  peak = peak_tflops(device['kind'], arithmetic)
  median = spread(seconds)['median']
  return report | {
    'seconds_a_step': spread(seconds),
    'target_tokens_per_second': report['target_tokens'] / median,
    'tflop_per_second': report['gflop'] / median / 1_000,
    'arithmetic': arithmetic,
    'utilisation': utilisation(report['gflop'], median, peak),
  }


def _table(device: Mapping[str, Any], found: Mapping[str, Any]) -> str:
  header = ('', 'rows', 'tokens/s', 'ms a step', 'min', 'max', 'TFLOP/s')
  header += ('MFU', 'compiled in s', 'peak MB')
  notes = [
    f'{name}: too little memory for {own["rows_wanted"]} rows'
    for name, own in found.items()
    if own['rows'] != own['rows_wanted']
  ]
  if peak_tflops(device['kind'], 'bfloat16') is None:
    notes.append(f'no peak is known of {device["kind"]!r}: no utilisation')
  notes.append(
    f'float32 products: matmul precision {device["matmul_precision"]!r}, '
    f'by their error in {device["float32_products"]}'
  )
  rows = [(name, *_cells(own)) for name, own in found.items()]
  return '\n'.join((table(header, rows), *notes))


def _cells(own: Mapping[str, Any]) -> tuple[str, ...]:
  share, memory = own['utilisation'], own['peak_device_mb']
  laps = own['seconds_a_step']
  return (
    f'{own["rows"]} x {own["length"]}+{own["length"]}',
    f'{own["target_tokens_per_second"]:,.0f}',
    *(f'{1e3 * laps[key]:.2f}' for key in ('median', 'min', 'max')),
    f'{own["tflop_per_second"]:.2f}',
    '' if share is None else f'{share:.1%}',
    f'{own["compile_seconds"]:.1f}',
    '' if memory is None else f'{memory:,.0f}',
  )
