"""Training steps of several sizes: tokens/s, use of the device, memory."""

import functools
import itertools
import json
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.acceleration.device import peak_tflops, utilisation
from benchmarks.acceleration.place import Place
from benchmarks.acceleration.work import Part, Piece
from benchmarks.common import as_flags, cells, log, table
from benchmarks.train_throughput import rates
from fusion_jax.errors import CheckFailed

_NO_MEMORY = 'RESOURCE_EXHAUSTED'
# `loss_chunk` is as the configs of large corpora have it.
_FULL = {'rows': 64, 'length': 128, 'loss_chunk': 4_096, 'updates': 5}
_TINY = {'rows': 8, 'length': 16, 'loss_chunk': 64, 'updates': 1}


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
  flags = {'size': size, 'dtype': dtype, 'layout': layout} | steps
  while True:
    try:
      answers = place.start(
        f'speed {name}',
        *('-m', 'benchmarks.fusion_jax_step', *as_flags(flags)),
        requests='1\n' * (2 if place.tiny else 10),
        seconds=max(deadline - time.monotonic(), 0),
        compiles_anew=True,
      )
      break
    except CheckFailed as error:
      if _NO_MEMORY not in str(error) or flags['rows'] == 1:
        raise
    flags['rows'] //= 2
    log(f'speed {name}: too little memory; now with {flags["rows"]} rows')
  found = summary(answers, steps['updates'], place.device, dtype)
  found |= {'rows': flags['rows'], 'length': steps['length']}
  place.add('speed', name, found | {'rows_wanted': steps['rows']})
  return True


def summary(
  answers: str, updates: int, device: Mapping[str, Any], dtype: str
) -> dict[str, Any]:
  """What the contestant reports, with seconds a step, rates and utilisation.

  `answers` are its lines of JSON, `updates` those of each timing, and `device`
  is that of `acceleration.device`.
  """
  lines = [json.loads(line) for line in answers.splitlines()]
  found = rates(lines, updates)
  speed = found.pop('rates')
  seconds = {'median': 1 / speed['median']}
  seconds |= {'min': 1 / speed['max'], 'max': 1 / speed['min']}
  arithmetic = device['float32_products'] if dtype == 'float32' else dtype
  peak = peak_tflops(device['kind'], arithmetic)
  return found | {
    'seconds_a_step': seconds,
    'target_tokens_per_second': found['target_tokens'] * speed['median'],
    'tflop_per_second': found['gflop'] * speed['median'] / 1_000,
    'arithmetic': arithmetic,
    'utilisation': utilisation(found['gflop'], seconds['median'], peak),
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
  return (
    f'{own["rows"]} x {own["length"]}+{own["length"]}',
    f'{own["target_tokens_per_second"]:,.0f}',
    *cells(own['seconds_a_step'], '.2f', 1e3),
    f'{own["tflop_per_second"]:.2f}',
    '' if share is None else f'{share:.1%}',
    f'{own["compile_seconds"]:.1f}',
    '' if memory is None else f'{memory:,.0f}',
  )
