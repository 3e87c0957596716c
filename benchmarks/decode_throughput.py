"""Searches on random ids: output tokens/s, in batches and one by one.

    python -m benchmarks.decode_throughput --size=base [--peers]

All contestants translate the same random ids with random parameters, and make
exactly 32 decoder steps for every sentence. They take turns, task by task. The
same command resumes.
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.side_by_side import Comparison, Program, add_flags, peer, rates
from benchmarks.sizes import LENGTH, TASKS, Task

_OURS = 'fusion_jax'
_OWN = {
  _OURS: 'float32',
  'fusion_jax, int8': 'int8',
  'fusion_jax, bfloat16': 'bfloat16',
}
_CTRANSLATE2 = {
  'CTranslate2 float32, 2 workers x 1 thread': ('float32', 2, 1),
  'CTranslate2 float32, 1 worker x 2 threads': ('float32', 1, 2),
  'CTranslate2 int8, 2 workers x 1 thread': ('int8', 2, 1),
}
_RATE = 'output_tokens_per_second'
_Summary = Mapping[str, Mapping[str, Any]]


def main(argv: list[str]) -> None:
  parser = common.make_parser(__doc__)
  add_flags(parser, 'small', rounds=3, steps=1)
  arguments = parser.parse_args(argv)
  comparison = Comparison(arguments, 'decode_throughput')
  with tempfile.TemporaryDirectory() as folder:
    model = Path(folder) / 'model' if arguments.peers else None
    if model:
      common.log('exporting the random model')
      # In a process of its own, whose memory is given back.
      flags = f'--output={model}', f'--size={arguments.size}'
      common.start('-m', 'benchmarks.contestants', 'export', *flags)
    for task in TASKS:
      comparison.measure(programs(task, arguments.size, model))
  summary = summarise(comparison.rounds)
  comparison.save(summary)
  print(report(summary))


def programs(task: Task, size: str, model: Path | None) -> dict[str, Program]:
  """The contestants of a task; the others only with an exported model."""
  flags = common.as_flags({'size': size, **task._asdict()})
  contestants = {
    name: Program(
      'benchmarks.contestants', ('search', *flags, f'--precision={precision}')
    )
    for name, precision in _OWN.items()
  }
  if model:
    for name, (compute, workers, threads) in _CTRANSLATE2.items():
      ways = {'model': model, 'compute': compute, 'workers': workers}
      more = common.as_flags(ways | {'threads': threads})
      contestants[name] = Program(
        'benchmarks.peers.ctranslate2_search', (*flags, *more)
      )
    contestants['JoeyNMT'] = peer('joeynmt_contestants', 'search', *flags)
  return {
    f'{name} | {task.name}': program for name, program in contestants.items()
  }


def summarise(rounds: Mapping[str, list[dict[str, Any]]]) -> _Summary:
  summary: dict[str, dict[str, Any]] = {}
  for task in TASKS:
    for key, answers in rounds.items():
      name, _, of_task = key.partition(' | ')
      if of_task == task.name:
        last = rates(answers, _RATE, task.output_tokens)
        summary.setdefault(task.name, {})[name] = last
  return summary


def report(summary: _Summary) -> str:
  """Output tokens/s, ratios, and whether greedy translations are the same."""

  def cell(name: str, answers: Mapping[str, Any]) -> str:
    ours, theirs = (
      answers.get(program, {}).get(_RATE, {}).get('median')
      for program in (_OURS, name)
    )
    times = f' ({ours / theirs:.2f})' if ours and theirs else ''
    return f'{theirs:,.0f}{times}' if theirs else ''

  names = dict.fromkeys(
    name for answers in summary.values() for name in answers
  )
  rows = [
    (name, *(cell(name, answers) for answers in summary.values()))
    for name in names
  ]
  text = f'output tokens/s, {LENGTH} a sentence (how many times {_OURS} has)'
  table = common.table(('', *summary), rows)
  return '\n'.join((text, table, *_notes(summary)))


def _notes(summary: _Summary) -> list[str]:
  notes = []
  for task, answers in summary.items():
    ours = answers.get(_OURS, {}).get('first')
    for name, answer in answers.items():
      if task.startswith('greedy') and name != _OURS and 'first' in answer:
        same = 'the same' if answer['first'] == ours else 'another'
        notes.append(f'{task}, {name}: {same} first translation')
  return notes


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
