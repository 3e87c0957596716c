"""Training steps on dense random batches: target tokens/s, alone or with peers.

    python -m benchmarks.train_throughput --size=small [--peers]

The contestants take turns, a few steps each, round after round. Every round
is saved: the same command resumes where it stopped, and tries again the peers
that could not start.
"""

import sys
from collections.abc import Mapping
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

  contestants = {'fusion_jax': ours('step'), _PRODUCTS: ours('products')}
  if peers:
    everywhere = 'fusion_jax, dropout everywhere'
    contestants |= {
      everywhere: ours('step', '--dropout_everywhere'),
      _JOEYNMT: peer('joeynmt_contestants', 'step', flag, huge_pages=False),
      f'{_JOEYNMT}, huge pages': peer('joeynmt_contestants', 'step', flag),
      _PYTORCH[0]: peer('pytorch_step', flag, '--compile'),
      _PYTORCH[1]: peer('pytorch_step', flag),
    }
  return contestants


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
    name: rates(answers, 'target_tokens_per_second', size.target_tokens)
    for name, answers in results['rounds'].items()
  }
  write_results(path, results)
  print(report(results['summary'], size))


def report(summary: Mapping[str, Any], size: Size) -> str:
  """Tokens/s, as shares of those of the products alone and of the first."""
  speeds = {
    name: answer['target_tokens_per_second']['median']
    for name, answer in summary.items()
  }
  products, ours = speeds.get(_PRODUCTS), next(iter(speeds.values()))
  rows = [
    (
      name,
      *cells(answer['target_tokens_per_second']),
      f'{speeds[name] / products:.0%}' if products else '',
      f'{ours / speeds[name]:.2f}',
      f'{answer["parameters"]:,}' if 'parameters' in answer else '',
      f'{answer["start_seconds"]:.1f}',
      f'{answer["peak_memory_mb"]:,.0f}',
    )
    for name, answer in summary.items()
  ]
  header = ('target tokens/s', 'median', 'min', 'max', 'of products')
  header += ('fusion_jax, times', 'parameters', 'start s', 'peak MB')
  shape = f'{size.rows} sentences of {size.length}+{size.length}'
  return f'{shape}, {size.gflop:.1f} GFLOP a step\n{table(header, rows)}'


if __name__ == '__main__':
  sys.exit(main())
