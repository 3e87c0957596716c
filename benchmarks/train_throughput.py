"""Training steps on dense random batches: target tokens/s, alone or with peers.

    python -m benchmarks.train_throughput --size=small [--peers]

The contestants take turns, a few steps each, round after round. Every round
is saved: the same command resumes where it stopped, and tries again the peers
that could not start.
"""

import sys
from pathlib import Path
from typing import Any

from benchmarks.common import (
  RESULTS,
  cells,
  make_parser,
  resume,
  table,
  write_results,
)
from benchmarks.serving import limit_cores
from benchmarks.side_by_side import Program, measure, peer, rates
from benchmarks.sizes import SIZES, Size

_PRODUCTS = 'matrix products alone'
_JOEYNMT = 'JoeyNMT'
_PYTORCH = ('PyTorch, torch.compile', 'PyTorch, eager')


def programs(size: str, peers: bool) -> dict[str, Program]:
  """The contestants."""
  flag = f'--size={size}'

  def ours(*flags: str) -> Program:
    return Program('benchmarks.contestants', (*flags, flag))

  found = {'fusion_jax': ours('step'), _PRODUCTS: ours('products')}
  if peers:
    everywhere = 'fusion_jax, dropout everywhere'
    found |= {
      everywhere: ours('step', '--dropout_everywhere'),
      _JOEYNMT: peer('joeynmt_contestants', 'step', flag, huge_pages=False),
      f'{_JOEYNMT}, huge pages': peer('joeynmt_contestants', 'step', flag),
      _PYTORCH[0]: peer('pytorch_step', flag, '--compile'),
      _PYTORCH[1]: peer('pytorch_step', flag),
    }
  return found


def main() -> None:
  parser = make_parser(__doc__)
  add = parser.add_argument
  add('--size', choices=SIZES, default='small')
  add('--peers', action='store_true')
  add('--rounds', type=int, default=6)
  add('--steps', type=int, default=5, help='of a round')
  add('--output', type=Path)
  add('--fresh', action='store_true', help='start anew')
  arguments = parser.parse_args()
  size = SIZES[arguments.size]
  path = arguments.output or RESULTS / f'train_throughput_{arguments.size}.json'
  settings = {'size': arguments.size, 'steps': arguments.steps}
  results = resume(path, settings, arguments.fresh)
  results['gflop_per_step'] = size.gflop
  limit_cores()
  contestants = programs(arguments.size, arguments.peers)
  measure(results, contestants, arguments.rounds, arguments.steps, path)
  results['summary'] = {
    name: _summary(answers, size) for name, answers in results['rounds'].items()
  }
  write_results(path, results)
  print(_report(results, arguments.size))


def _summary(answers: list[dict[str, Any]], size: Size) -> dict[str, Any]:
  """Rates over all timed steps of a contestant, and its last report."""
  found = rates(answers, size.target_tokens)
  speed = found.pop('rates')
  gflop = speed['median'] / size.target_tokens * size.gflop
  return found | {
    'target_tokens_per_second': speed,
    'gflop_per_second_of_step': gflop,
  }


def _report(results: dict[str, Any], name: str) -> str:
  summary, size = results['summary'], SIZES[name]
  header = ('', 'tokens/s', 'min', 'max', 'GFLOP/s', 'of products')
  header += ('parameters', 'start s', 'peak MB')
  return '\n'.join(
    (
      f'{name}: {size.rows} sentences of {size.length}+{size.length}, '
      f'{size.gflop:.1f} GFLOP a step, {results["settings"]["steps"]} steps x '
      f'{max(map(len, results["rounds"].values()))} rounds',
      table(header, [_row(key, summary) for key in summary]),
      *_notes(summary),
    )
  )


def _row(name: str, summary: dict[str, dict[str, Any]]) -> tuple[str, ...]:
  own = summary[name]
  return (
    name,
    *cells(own['target_tokens_per_second']),
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
  ours, theirs = (
    summary[key]['target_tokens_per_second']['median'] for key in (name, other)
  )
  return format(ours / theirs, form)


def _notes(summary: dict[str, dict[str, Any]]) -> list[str]:
  notes = [
    f'{name}: {_share(summary, name, other, ".2f")} times {other}'
    for name in summary
    for other in (_JOEYNMT, *_PYTORCH)
    if name.startswith('fusion_jax') and other in summary
  ]
  if own := summary.get('fusion_jax'):
    notes.append(
      f'fusion_jax: compiled in {own["compile_seconds"]:.1f} s '
      f'({own["compilations_after_first_step"]} compilations after the first '
      f'step), temporary memory '
      f'{own["temporary_memory_mb"]:.0f} MB, arguments '
      f'{own["argument_memory_mb"]:.0f} MB'
    )
  if _PRODUCTS in summary:
    kinds = summary[_PRODUCTS]['gflop_per_second'].items()
    listed = ', '.join(f'{key} {rate:.0f}' for key, rate in kinds)
    notes.append(f'GFLOP/s of the products: {listed}')
  counts = {own.get('parameters') for own in summary.values()} - {None}
  if len(counts) > 1:
    notes.append(f'the contestants differ in parameters: {sorted(counts)}')
  return notes


if __name__ == '__main__':
  sys.exit(main())
