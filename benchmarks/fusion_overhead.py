"""What fusion costs: a training and a decoding step beside the baseline's.

    python -m benchmarks.fusion_overhead [--schemes=NAME,NAME]
    python -m benchmarks.fusion_overhead --memory

A scheme and the baseline are in one process and take turns, in the order b s
s b; the speed of the scheme is the median of b / s over all neighbours.
`allowed` is the speed that the matrix products in the two programs allow, by
their operations alone, and `efficiency` the part of it that is reached. A
decoding step is one of a beam search; the encoder is not timed. Schemes are
saved one by one: the same command resumes with those that are missing. One that
fails is reported and does not stop the others.

With --memory: what XLA plans for a training step and for the loss alone, with
a group of GTRANS for each decoder layer beside the baseline. Nothing is run.
"""

import argparse
import dataclasses
import gc
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks import fusion_memory
from benchmarks.common import (
  RESULTS,
  circumstances,
  log,
  resume,
  table,
  write_results,
)
from benchmarks.fusion_jax_step import FusionJaxStep, experiment
from benchmarks.schemes import POST_NORM, Scheme, chosen, schemes
from benchmarks.search_step import SearchSteps
from benchmarks.serving import limit_cores, timed
from benchmarks.sizes import SIZES, Size
from fusion_jax.config.flags import parse_arguments
from fusion_jax.config.presets import Row, changed
from fusion_jax.errors import CheckFailed, first_line
from fusion_jax.startup import one_line_errors, use_huge_pages

_LEAST_EFFICIENCY = 0.85
_BEAM = 4
_PARTS = ('train', 'decode')


class Programs:
  """The two programs of a scheme.

  Attributes:
    run: runs one of them once.
    gflop: 10^9 floating point operations of its matrix products.
    parameters: of the model.
  """

  def __init__(self, size: Size, sentences: int, steps: int, row: Row):
    step = FusionJaxStep(size, changed(experiment(size), POST_NORM | row))
    search = SearchSteps(
      step.model,
      step.parameters,
      dataclasses.replace(size, rows=sentences),
      _BEAM,
      steps,
    )
    self.gflop = {'train': step.gflop, 'decode': search.gflop}
    self.run: dict[str, Callable[[], None]] = {
      'train': step.step,
      'decode': lambda: search.run(step.parameters),
    }
    for run in self.run.values():
      run()
    self.parameters = step.report()['parameters']


@one_line_errors
def main(argv: list[str]) -> None:
  """Measures what is missing, then prints the table."""
  arguments = _parse(argv)
  limit_cores()
  if arguments.memory:
    _plan_memory(arguments)
  else:
    _measure(arguments)


def in_turns(
  scheme: Programs, baseline: Programs, part: str, rounds: int
) -> dict[str, Any]:
  """Seconds of both, two a round, and their operations."""
  both = {'baseline': baseline, 'scheme': scheme}
  seconds = {name: [] for name in both}
  for _ in range(rounds):
    for name in ('baseline', 'scheme', 'scheme', 'baseline'):
      seconds[name].append(timed(both[name].run[part]))
  gflop = {name: programs.gflop[part] for name, programs in both.items()}
  return {'seconds': seconds, 'gflop': gflop}


def summarise(measured: dict[str, Any]) -> dict[str, float]:
  """Speeds relative to the baseline, and the efficiency."""
  seconds, gflop = measured['seconds'], measured['gflop']
  speed = statistics.median(
    base / own
    for base, own in zip(seconds['baseline'], seconds['scheme'], strict=True)
  )
  allowed = gflop['baseline'] / gflop['scheme']
  return {'speed': speed, 'allowed': allowed, 'efficiency': speed / allowed}


def summaries(rounds: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """What `report` shows of each scheme that has been measured."""
  return {
    name: {'extra_parameters': measured['extra_parameters']}
    | {part: summarise(measured[part]) for part in _PARTS}
    for name, measured in rounds.items()
  }


def report(results: dict[str, Any], printed: dict[str, Scheme]) -> str:
  """The table and the sentences around it."""
  summary, settings = results['summary'], results['settings']
  header = ('', 'parameters')
  for part in _PARTS:
    header += (part, 'allowed', 'efficiency', 'paper')
  rows = [
    (name, f'{own["extra_parameters"]:+,}', *_cells(own, printed[name]))
    for name, own in summary.items()
  ]
  lines = [
    'speed relative to the baseline: training steps of '
    f'{settings["rows"]} x {settings["length"]}+{settings["length"]}, '
    f'decoding steps of {settings["sentences"]} x beam {_BEAM}',
    table(header, rows),
  ]
  for name, own in summary.items():
    efficiency = own['train']['efficiency']
    if efficiency < _LEAST_EFFICIENCY:
      lines.append(
        f'{name}: training efficiency {efficiency:.2f}, less than '
        f'{_LEAST_EFFICIENCY}'
      )
  return '\n'.join(lines)


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--schemes', default='', help='with commas between; default: all')
  add('--memory', action='store_true', help='plan the memory instead')
  add('--size', choices=SIZES, default='base')
  add('--dtype', default='float32', help='or bfloat16: of the activations')
  add('--length', type=int, help='subwords of a sentence; default: as --size')
  add('--rows', type=int, default=8, help='sentences of a training step')
  add('--sentences', type=int, default=16, help='of a decoding step')
  add('--steps', type=int, default=12, help='of a search')
  add('--rounds', type=int, default=4, help='of two timings each')
  add('--output', type=Path)
  add('--fresh', action='store_true', help='start anew')
  return parse_arguments(argv, parser)


def _measure(arguments: argparse.Namespace) -> None:
  size = SIZES[arguments.size]
  length = arguments.length or size.length
  size = dataclasses.replace(size, rows=arguments.rows, length=length)
  path = arguments.output or RESULTS / 'fusion_overhead.json'
  flags = ('dtype', 'sentences', 'steps', 'rounds')
  settings = dataclasses.asdict(size)
  settings |= {name: getattr(arguments, name) for name in flags}
  results = resume(path, settings, arguments.fresh)
  every = schemes(size.layers)
  missing = chosen(every, arguments.schemes)
  for name in results['rounds']:
    missing.pop(name, None)
  failed = (
    _add_rounds(results, missing, size, arguments, path) if missing else []
  )
  results['summary'] = summaries(results['rounds'])
  write_results(path, results)
  print(report(results, every))
  if failed:
    raise CheckFailed('; '.join(failed))


def _add_rounds(
  results: dict[str, Any],
  missing: dict[str, Scheme],
  size: Size,
  arguments: argparse.Namespace,
  path: Path,
) -> list[str]:
  """Measures schemes; of those that failed, names and reasons."""
  sizes = size, arguments.sentences, arguments.steps
  dtype = {'model.compute_dtype': arguments.dtype}
  baseline, failed = Programs(*sizes, dtype), []
  for name, scheme in missing.items():
    try:
      measured = _beside(
        baseline, Programs(*sizes, scheme.row | dtype), arguments.rounds
      )
    except RuntimeError as error:  # Of XLA: too little memory, for example.
      failed.append(f'{name}: {first_line(error)}')
      log(failed[-1])
    else:
      results['rounds'][name] = measured
      write_results(path, results)
      speeds = [
        f'{part} {summarise(measured[part])["speed"]:.2f}' for part in _PARTS
      ]
      log(f'{name}: {", ".join(speeds)}')
    jax.clear_caches()
    gc.collect()
  return failed


def _beside(
  baseline: Programs, scheme: Programs, rounds: int
) -> dict[str, Any]:
  """Both programs of a scheme in turns with those of the baseline."""
  extra = scheme.parameters - baseline.parameters
  return {'extra_parameters': extra} | {
    part: in_turns(scheme, baseline, part, rounds) for part in _PARTS
  }


def _cells(own: dict[str, Any], scheme: Scheme) -> tuple[str, ...]:
  cells = ()
  for part in _PARTS:
    printed = getattr(scheme, part)
    cells += tuple(
      f'{own[part][key]:.2f}' for key in ('speed', 'allowed', 'efficiency')
    )
    cells += ('' if printed is None else f'{printed:.2f}',)
  return cells


def _plan_memory(arguments: argparse.Namespace) -> None:
  path = arguments.output or RESULTS / 'fusion_memory.json'
  results = fusion_memory.plan(SIZES[arguments.size])
  write_results(path, circumstances() | results)
  print(fusion_memory.report(results))


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
