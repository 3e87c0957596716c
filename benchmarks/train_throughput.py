"""Training steps on dense random batches: target tokens/s, alone or with peers.

    python -m benchmarks.train_throughput --size=small [--peers]

The contestants take turns, a few steps each, round after round. Every round
is saved: the same command resumes where it stopped, and tries again the peers
that could not start.
"""

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks import common
from benchmarks.side_by_side import Comparison, Program, add_flags, peer, rates
from benchmarks.sizes import SIZES, Size

_PRODUCTS = 'matrix products alone'


def programs(size: str, peers: bool) -> dict[str, Program]:
  flag = f'--size={size}'

  def ours(*flags: str) -> Program:
    return Program('benchmarks.contestants', (*flags, flag))

  contestants = {
    'fusion_jax': ours('step'),
    'fusion_jax, bfloat16 products': ours('step', '--product_dtype=bfloat16'),
    _PRODUCTS: ours('products'),
  }
  if peers:
    joeynmt = 'joeynmt_contestants', 'step', flag
    contestants |= {
      'fusion_jax, dropout everywhere': ours('step', '--dropout_everywhere'),
      'JoeyNMT': peer(*joeynmt, huge_pages=False),
      'JoeyNMT, huge pages': peer(*joeynmt),
      'PyTorch, torch.compile': peer('pytorch_step', flag, '--compile'),
      'PyTorch, eager': peer('pytorch_step', flag),
      'PyTorch, bfloat16, torch.compile': peer(
        'pytorch_step', flag, '--compile', '--dtype=bfloat16'
      ),
      'PyTorch, bfloat16, eager': peer(
        'pytorch_step', flag, '--dtype=bfloat16'
      ),
    }
  return contestants


def main(argv: list[str]) -> None:
  parser = common.make_parser(__doc__)
  add_flags(parser, 'small', rounds=6, steps=5)
  arguments = parser.parse_args(argv)
  size = SIZES[arguments.size]
  comparison = Comparison(arguments, 'train_throughput')
  comparison.results['gflop_per_step'] = size.gflop
  comparison.measure(programs(arguments.size, arguments.peers))
  summary = {
    name: rates(answers, 'target_tokens_per_second', size.target_tokens)
    for name, answers in comparison.rounds.items()
  }
  comparison.save(summary)
  print(report(summary, size))


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
      *common.cells(answer['target_tokens_per_second']),
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
  table = common.table(header, rows)
  return f'{shape}, {size.gflop:.1f} GFLOP a step\n{table}'


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
