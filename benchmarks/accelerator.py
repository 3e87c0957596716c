r"""What a CPU cannot measure, on one GPU or TPU, in a budget of minutes.

    python -m benchmarks.accelerator --output=DIR [--data=MULTI30K] \
        [--minutes=9] [--plan] [--cores=16]
    python -m benchmarks.accelerator --output=DIR --size=tiny

One process compiles the programs of all rows in parallel threads, those that
tell most first, and starts the programs that it is compared with. Then each
row is timed with nothing beside it, and the kernels of each training step are
profiled. It may be killed at any moment: --output has every figure, and the
same command does the rows that are left. --size=tiny shows on a CPU that the
program works.
"""

import argparse
import concurrent.futures
import functools
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks import common
from benchmarks.accelerator_plan import (
  DATA,
  Measure,
  Place,
  Row,
  TimeIsOver,
  plan,
)
from fusion_jax.config.flags import parse_arguments
from fusion_jax.errors import CheckFailed, InputError, first_line
from fusion_jax.runs.directory import locked
from fusion_jax.startup import one_line_errors
from fusion_jax.tools.aot.topology import CHIPS


class Preparation:
  """Compiles programs while there is time to compile and measure them."""

  def __init__(self, left: Callable[[], float], cores: int):
    """`left` gives the seconds that are left of the budget."""
    self._left, self._cores, self._lock = left, cores, threading.Lock()
    self._measures = 0.0
    self.ready: dict[str, Measure] = {}
    self.seconds: dict[str, float] = {}
    self.failed: dict[str, str] = {}
    self.left_out: dict[str, str] = {}

  def run(self, rows: Sequence[Row]) -> None:
    """Prepare rows in their order; other programs one after another."""
    pool = concurrent.futures.ThreadPoolExecutor
    with pool(self._cores) as compiling, pool(1) as starting:
      for row in rows:
        (starting if row.starts else compiling).submit(self._prepare, row)

  def _prepare(self, row: Row) -> None:
    with self._lock:
      left = self._left() - self._measures - row.measures
      if row.missing or left < row.compiles:
        over = f'not compiled: only {max(left, 0):.0f} s were left for it'
        self.left_out[row.name] = row.missing or over
        return
      self._measures += row.measures
    begin = time.perf_counter()
    try:
      self.ready[row.name] = row.prepare(left)
    except Exception as error:  # The others must be done, bug or not.
      self.failed[row.name] = first_line(error)
    self.seconds[row.name] = time.perf_counter() - begin
    end = self.failed.get(row.name, f'ready in {self.seconds[row.name]:.0f} s')
    common.log(f'{row.name}: {end}')


def carry_out(
  rows: Sequence[Row],
  results: dict[str, Any],
  left: Callable[[], float],
  cores: int,
  save: Callable[[], None],
) -> None:
  """Add the figures of the rows that have none, and save after each.

  `left` gives the seconds that are left of the budget; `cores` threads compile.
  """
  todo = [row for row in rows if row.name not in results['figures']]
  # What failed before comes last.
  todo.sort(key=lambda row: row.name in results['failed'])
  preparation = Preparation(left, cores)
  # Tracing leaves objects that a collection would look through every time.
  gc.disable()
  preparation.run(todo)
  gc.freeze()
  gc.enable()
  results['failed'] = failed = preparation.failed
  results['left_out'] = left_out = preparation.left_out
  known = results['compile_seconds']
  results['compile_seconds'] = preparation.seconds | known
  save()
  # Others give their memory back before our programs take it.
  for row in sorted(todo, key=lambda row: not row.starts):
    if row.name not in preparation.ready:
      continue
    try:
      if left() < row.measures:
        raise TimeIsOver
      measure = preparation.ready.pop(row.name)
      results['figures'][row.name] = measure(left())
    except TimeIsOver:
      left_out[row.name] = 'the time was over'
    except Exception as error:  # Too little memory, for example.
      failed[row.name] = first_line(error)
    common.log(f'{row.name}: {(failed | left_out).get(row.name, "measured")}')
    save()
    measure = None
    gc.collect()


def expected_minutes(rows: Iterable[Row], cores: int) -> tuple[float, float]:
  """Return the minutes of compilation and of measuring."""
  there = [row for row in rows if not row.missing]
  ours = sum(row.compiles for row in there if not row.starts) / cores
  others = sum(row.compiles for row in there if row.starts)
  return max(ours, others) / 60, sum(row.measures for row in there) / 60


def describe() -> dict[str, Any]:
  device = jax.devices()[0]
  facts = {
    'platform': device.platform,
    'kind': device.device_kind,
    'memory_mb': (device.memory_stats() or {}).get('bytes_limit', 0) / 2**20,
    'runtime': ' '.join(device.client.platform_version.split()),
    'peak_tflops': peak_tflops(device.device_kind),
  }
  if device.platform == 'gpu':
    query = '--query-gpu=driver_version', '--format=csv,noheader'
    answer = subprocess.run(['nvidia-smi', *query], stdout=subprocess.PIPE)
    facts['driver'] = answer.stdout.decode().split()[0]
  return facts


def peak_tflops(kind: str) -> float | None:
  chip = DATA['kinds'].get(kind)
  return CHIPS[chip].flops / 1e12 if chip else None


@one_line_errors
def main(argv: list[str]) -> None:
  arguments = _parse(argv)
  end, cores = time.monotonic() + 60 * arguments.minutes, arguments.cores
  tiny = arguments.size == 'tiny'
  if tiny:
    flags = *DATA['quick'], os.environ.get('XLA_FLAGS', '')
    os.environ['XLA_FLAGS'] = ' '.join(flags)
  device = describe()
  if device['platform'] == 'cpu' and not (tiny or arguments.plan):
    raise InputError(
      'JAX finds no accelerator, only a CPU; --size=tiny tries the program'
    )
  place = Place(arguments.output, arguments.data, tiny, device['platform'])
  rows = plan(place)
  if arguments.plan:
    print(_planned(rows, cores))
    return
  _keep_compiled(place.folder)
  with locked(place.folder):
    path = place.folder / 'accelerator.json'
    results = _resumed(path, {'size': arguments.size, 'device': device})
    save = functools.partial(common.write_results, path, results)
    try:
      carry_out(rows, results, lambda: end - time.monotonic(), cores, save)
    except KeyboardInterrupt:
      os._exit(130)  # Nothing else stops a compilation.
  print(report(results, rows))
  if failed := results['failed']:
    names = '; '.join(failed)
    raise CheckFailed(
      f'{len(failed)} rows, which the same command tries again: {names}'
    )


def _keep_compiled(folder: Path) -> None:
  """What a kill interrupts need not be compiled again."""
  jax.config.update('jax_compilation_cache_dir', str(folder / 'compiled'))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = common.make_parser(__doc__)
  add = parser.add_argument
  add('--output', type=Path, required=True, help='a folder for the results')
  add('--data', type=Path, help='the folder of Multi30k')
  add('--minutes', type=float, default=9, help='end after so long')
  add('--size', choices=('full', 'tiny'), default='full')
  add('--plan', action='store_true', help='only print the rows')
  add('--cores', type=int, default=os.cpu_count(), help='that compile')
  return parse_arguments(argv, parser)


def _resumed(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
  if not path.exists():
    names = ('figures', 'compile_seconds', 'failed', 'left_out')
    return common.circumstances() | settings | {name: {} for name in names}
  results: dict[str, Any] = json.loads(path.read_text())
  before = results['size'], results['device']['kind']
  if before != (settings['size'], settings['device']['kind']):
    raise InputError(
      f'--output: {path} has results of {before[1]}, size {before[0]}; give '
      'another folder'
    )
  return results


def _planned(rows: Sequence[Row], cores: int) -> str:
  lines = [
    (row.name, f'{row.compiles:.0f}', f'{row.measures:.0f}', row.missing)
    for row in rows
  ]
  table = common.table(('', 'compiles s', 'measured s', ''), lines)
  compiling, measuring = expected_minutes(rows, cores)
  return (
    f'{table}\non {cores} cores {compiling:.1f} minutes of compilation and '
    f'{measuring:.1f} of measuring'
  )


def report(results: Mapping[str, Any], rows: Sequence[Row]) -> str:
  """Return the figures, the profile of the fastest step, what is missing."""
  device, figures = results['device'], results['figures']
  header = ('', 'tokens/s', 'ms', 'min', 'max', 'TFLOP/s', 'MFU', 'GB/s')
  header += ('peak MB', 'prepared s', 'times', 'paper')
  measured = [row for row in rows if 'seconds' in figures.get(row.name, {})]
  text = [
    f'{device["kind"]}, {device["runtime"]}, {results["size"]} sizes',
    common.table(header, [_line(row, results) for row in measured]),
  ]
  if 'multi30k' in figures:
    text.append(f'multi30k: {figures["multi30k"]["bleu"]:.2f} BLEU')
  profiled = [
    row.name
    for row in measured
    if row.name.startswith('base') and 'kernels' in figures[row.name]['profile']
  ]
  if profiled:
    best = max(profiled, key=lambda name: rate(figures[name]))
    text += ['', _profile_table(best, figures[best]['profile'])]
  text += [f'failed: {name}: {why}' for name, why in results['failed'].items()]
  left_out = results['left_out'].items()
  text += [f'left out: {name}: {why}' for name, why in left_out]
  return '\n'.join(text)


def rate(figure: Mapping[str, Any]) -> float:
  return figure['target_tokens'] / figure['seconds']['median']


def utilisation(
  figure: Mapping[str, Any], device: Mapping[str, Any]
) -> float | None:
  """Return the model FLOPs utilisation, gflop / (seconds * peak).

  Chowdhery et al. (2022), "PaLM", appendix B.
  """
  peak = device['peak_tflops']
  tflops = figure['gflop'] / figure['seconds']['median'] / 1e3
  return tflops / peak if peak else None


def _line(row: Row, results: Mapping[str, Any]) -> tuple[str, ...]:
  figures, figure = results['figures'], results['figures'][row.name]
  seconds = figure['seconds']['median']
  memory = figure.get('planned_mb') or figure.get('peak_device_mb')
  share = 'gflop' in figure and utilisation(figure, results['device'])
  base = figures.get(row.base)
  return (
    row.name,
    f'{rate(figure):,.0f}',
    *common.cells(figure['seconds'], '.2f', 1e3),
    f'{figure["gflop"] / seconds / 1e3:.2f}' if 'gflop' in figure else '',
    f'{share:.1%}' if share else '',
    f'{figure["gbytes"] / seconds:,.0f}' if 'gbytes' in figure else '',
    f'{memory:,.0f}' if memory else '',
    f'{results["compile_seconds"][row.name]:.0f}',
    f'{rate(figure) / rate(base):.2f}' if base else '',
    f'{row.paper:.2f}' if row.paper else '',
  )


def _profile_table(name: str, profile: Mapping[str, Any]) -> str:
  lines = [
    (
      kernel['name'][:60],
      kernel['part'],
      f'{kernel["calls"]:.0f}',
      f'{kernel["microseconds"]:.0f}',
      f'{kernel["share"]:.1%}',
    )
    for kernel in profile['kernels']
  ]
  header = (f'{name}, a step', 'part', 'calls', 'µs', 'share')
  return (
    f'{common.table(header, lines)}\n{profile["calls"]:.0f} kernels and '
    f'{profile["milliseconds"]:.2f} ms a step, idle {profile["idle"]:.1%}'
  )


if __name__ == '__main__':
  # What is compared with it needs memory too.
  os.environ.setdefault('XLA_PYTHON_CLIENT_PREALLOCATE', 'false')
  os.environ.setdefault('BENCHMARK_CORES', str(os.cpu_count()))
  sys.exit(main(sys.argv[1:]))
