"""Training steps on dense random batches: target tokens/s, alone or with peers.

    python -m benchmarks.train_throughput --size=small [--peers]

The contestants take turns, a few steps each, round after round. Every round
is saved: the same command resumes where it stopped, and tries again the peers
that could not start.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import (
  PEERS_PYTHON,
  RESULTS,
  log,
  resume,
  spread,
  table,
  write_results,
)
from benchmarks.serving import Worker, contestant_parser, limit_cores
from benchmarks.sizes import SIZES, Size

_PRODUCTS = 'matrix products alone'
_JOEYNMT = 'JoeyNMT'
_PYTORCH = ('PyTorch, torch.compile', 'PyTorch, eager')


class Program(NamedTuple):
  """How a contestant is started."""

  python: str
  module: str
  flags: tuple[str, ...] = ()
  huge_pages: bool = True


_OURS = {
  'fusion_jax': Program(sys.executable, 'benchmarks.fusion_jax_step'),
  _PRODUCTS: Program(sys.executable, 'benchmarks.matrix_products'),
}
_PEERS = {
  'fusion_jax, dropout everywhere': Program(
    sys.executable, 'benchmarks.fusion_jax_step', ('--dropout_everywhere',)
  ),
  _JOEYNMT: Program(
    str(PEERS_PYTHON), 'benchmarks.peers.joeynmt_step', huge_pages=False
  ),
  f'{_JOEYNMT}, huge pages': Program(
    str(PEERS_PYTHON), 'benchmarks.peers.joeynmt_step'
  ),
  _PYTORCH[0]: Program(
    str(PEERS_PYTHON), 'benchmarks.peers.pytorch_step', ('--compile',)
  ),
  _PYTORCH[1]: Program(str(PEERS_PYTHON), 'benchmarks.peers.pytorch_step'),
}


def main() -> None:
  """Measures what is missing, then prints the table."""
  arguments = _parse()
  size = SIZES[arguments.size]
  path = arguments.output or (
    RESULTS / f'train_throughput_{arguments.size}.json'
  )
  settings = {'size': arguments.size, 'steps': arguments.steps}
  results = resume(path, settings, arguments.fresh)
  results['gflop_per_step'] = size.gflop
  programs = _OURS | (_PEERS if arguments.peers else {})
  limit_cores()
  measure(results, programs, arguments, path)
  results['summary'] = {
    name: summarise(answers, size)
    for name, answers in results['rounds'].items()
  }
  write_results(path, results)
  print(report(results, arguments.size))


def measure(
  results: dict[str, Any],
  programs: dict[str, Program],
  arguments: argparse.Namespace,
  path: Path,
) -> None:
  """Adds the rounds that are missing, in turns."""
  rounds = results['rounds']
  missing = {
    name: program
    for name, program in programs.items()
    if len(rounds.get(name, ())) < arguments.rounds
  }
  workers = _start(missing, arguments.size)
  for index in range(arguments.rounds):
    for name in list(workers):
      if len(rounds.get(name, ())) > index:
        continue
      try:
        answer = workers[name].ask(arguments.steps)
      except (RuntimeError, OSError) as error:
        log(f'{name}: {error}')
        workers.pop(name)
        continue
      rounds.setdefault(name, []).append(answer)
      write_results(path, results)
      median = statistics.median(answer['seconds'])
      log(f'round {index + 1} of {arguments.rounds}, {name}: {median:.3f} s')
  for worker in workers.values():
    worker.close()


def summarise(answers: list[dict[str, Any]], size: Size) -> dict[str, Any]:
  """Rates over all timed steps of a contestant, and its last report."""
  rates = [
    size.target_tokens / seconds
    for answer in answers
    for seconds in answer['seconds']
  ]
  last = {key: value for key, value in answers[-1].items() if key != 'seconds'}
  median = spread(rates)['median']
  rate = median / size.target_tokens * size.gflop
  return last | {
    'target_tokens_per_second': spread(rates),
    'gflop_per_second_of_step': rate,
  }


def report(results: dict[str, Any], name: str) -> str:
  """The table and the sentences below it."""
  summary, size = results['summary'], SIZES[name]
  header = ('', 'tokens/s', 'min', 'max', 'GFLOP/s', 'of products')
  header += ('parameters', 'start s', 'peak MB')
  lines = [
    f'{name}: {size.rows} sentences of {size.length}+{size.length}, '
    f'{size.gflop:.1f} GFLOP a step, {results["settings"]["steps"]} steps x '
    f'{max(map(len, results["rounds"].values()))} rounds',
    table(header, [_row(key, summary) for key in summary]),
    *_notes(summary),
  ]
  return '\n'.join(lines)


def _parse() -> argparse.Namespace:
  parser = contestant_parser()
  parser.description = __doc__
  parser.formatter_class = argparse.RawDescriptionHelpFormatter
  parser.add_argument('--peers', action='store_true')
  parser.add_argument('--rounds', type=int, default=6)
  parser.add_argument('--steps', type=int, default=5, help='of a round')
  parser.add_argument('--output', type=Path)
  parser.add_argument('--fresh', action='store_true', help='start anew')
  return parser.parse_args()


def _start(programs: dict[str, Program], size: str) -> dict[str, Worker]:
  workers = {}
  for name, program in programs.items():
    try:
      flags = [f'--size={size}', *program.flags]
      workers[name] = Worker(
        program.python, program.module, flags, program.huge_pages
      )
      seconds = workers[name].hello['start_seconds']
      log(f'{name}: ready, first step after {seconds:.1f} s')
    except (RuntimeError, OSError) as error:
      log(f'{name}: could not start: {error}')
  return workers


def _row(name: str, summary: dict[str, dict[str, Any]]) -> tuple[str, ...]:
  own = summary[name]
  rates = own['target_tokens_per_second']
  return (
    name,
    *(f'{rates[key]:,.0f}' for key in ('median', 'min', 'max')),
    f'{own["gflop_per_second_of_step"]:.0f}',
    _share(summary, name, _PRODUCTS, '.0%'),
    f'{own["parameters"]:,}' if 'parameters' in own else '',
    f'{own["start_seconds"]:.1f}',
    f'{own["peak_memory_mb"]:,.0f}',
  )


def _share(
  summary: dict[str, dict[str, Any]], name: str, other: str, form: str
) -> str:
  if name not in summary or other not in summary:
    return ''
  rates = [
    summary[key]['target_tokens_per_second']['median'] for key in (name, other)
  ]
  return format(rates[0] / rates[1], form)


def _notes(summary: dict[str, dict[str, Any]]) -> list[str]:
  notes = []
  for name in (key for key in summary if key.startswith('fusion_jax')):
    notes += [
      f'{name}: {_share(summary, name, other, ".2f")} times {other}'
      for other in (_JOEYNMT, *_PYTORCH)
      if other in summary
    ]
  own = summary.get('fusion_jax')
  if own:
    notes.append(
      f'fusion_jax: compiled in {own["compile_seconds"]:.1f} s '
      f'({own["compilations_of_step"]} program; after the first step '
      f'{own["compilations_after_first_step"]}), temporary memory '
      f'{own["temporary_memory_mb"]:.0f} MB, arguments '
      f'{own["argument_memory_mb"]:.0f} MB'
    )
  if _PRODUCTS in summary:
    kinds = summary[_PRODUCTS]['gflop_per_second']
    rates = ', '.join(f'{key} {rate:.0f}' for key, rate in kinds.items())
    notes.append(f'GFLOP/s of the products: {rates}')
  counts = {own.get('parameters') for own in summary.values()} - {None}
  if len(counts) > 1:
    notes.append(f'the contestants differ in parameters: {sorted(counts)}')
  return notes


if __name__ == '__main__':
  sys.exit(main())
