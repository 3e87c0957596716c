"""Translation with random parameters, side by side with other programs.

All contestants translate the same random ids and make exactly 32 decoder
steps for every sentence. They take turns, task by task and round by round;
every round is saved, and the same command resumes where it stopped.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import (
  PEERS_PYTHON,
  RESULTS,
  log,
  resume,
  spread,
  table,
  write_results,
)
from benchmarks.decode_task import LENGTH, TASKS, Task
from benchmarks.serving import ROOT, limit_cores
from benchmarks.train_throughput import Program, measure

_OURS = 'fusion_jax'
_CTRANSLATE2 = {
  'CTranslate2 float32, 2 workers x 1 thread': ('float32', 2, 1),
  'CTranslate2 float32, 1 worker x 2 threads': ('float32', 1, 2),
  'CTranslate2 int8, 2 workers x 1 thread': ('int8', 2, 1),
}
_JOEYNMT = 'JoeyNMT'


def compare(arguments: argparse.Namespace) -> str:
  """Measures what is missing.

  Args:
    arguments: size, peers, rounds, steps, output, fresh.

  Returns:
    The tables.
  """
  path = (
    arguments.output or RESULTS / f'decode_throughput_{arguments.size}.json'
  )
  settings = {'size': arguments.size, 'steps': arguments.steps}
  results = resume(path, settings, arguments.fresh)
  limit_cores()
  with tempfile.TemporaryDirectory() as folder:
    model = Path(folder) / 'model'
    if arguments.peers:
      _export(arguments.size, model)
    for task in TASKS:
      programs = _programs(task, model, arguments.peers)
      measure(results, programs, arguments, path)
  results['summary'] = summarise(results['rounds'])
  write_results(path, results)
  return report(results['summary'])


def summarise(
  rounds: Mapping[str, list[dict[str, Any]]],
) -> dict[str, dict[str, Any]]:
  """Output tokens/s of every task and contestant.

  Args:
    rounds: the answers of each, by `_key`.

  Returns:
    For each task and contestant the spread of the rates and the last report.
  """
  summary: dict[str, dict[str, Any]] = {}
  for task in TASKS:
    for key, answers in rounds.items():
      name, _, own_task = key.partition(' | ')
      if own_task != task.name:
        continue
      rates = [
        task.output_tokens / seconds
        for answer in answers
        for seconds in answer['seconds']
      ]
      last = {k: v for k, v in answers[-1].items() if k != 'seconds'}
      summary.setdefault(task.name, {})[name] = last | {
        'output_tokens_per_second': spread(rates)
      }
  return summary


def report(summary: Mapping[str, Mapping[str, Any]]) -> str:
  """Output tokens/s, ratios, and whether greedy translations are the same."""
  names = list(dict.fromkeys(name for own in summary.values() for name in own))
  rates = {
    (task, name): own[name]['output_tokens_per_second']['median']
    for task, own in summary.items()
    for name in own
  }
  speeds, ratios = [], []
  for name in names:
    each = [
      (rates.get((task, _OURS)), rates.get((task, name))) for task in summary
    ]
    speeds.append((name, *(f'{own:,.0f}' if own else '' for _, own in each)))
    ratios.append(
      (
        name,
        *(f'{ours / own:.2f}' if ours and own else '' for ours, own in each),
      )
    )
  return '\n'.join(
    (
      f'output tokens/s, {LENGTH} a sentence',
      table(('', *summary), speeds),
      f'\n{_OURS}, times',
      table(('', *summary), [row for row in ratios if row[0] != _OURS]),
      *_notes(summary),
    )
  )


def _notes(summary: Mapping[str, Mapping[str, Any]]) -> list[str]:
  notes = []
  for task in (task for task in TASKS if task.beam == 1):
    own = summary.get(task.name, {})
    ours = own.get(_OURS, {}).get('first')
    for name, answer in own.items():
      if name != _OURS and ours and 'first' in answer:
        same = 'the same' if answer['first'] == ours else 'another'
        notes.append(f'{task.name}, {name}: {same} first translation')
  return notes


def _programs(task: Task, model: Path, peers: bool) -> dict[str, Program]:
  own = Program(sys.executable, 'benchmarks.fusion_jax_decode', task.flags)
  programs = {_key(_OURS, task): own}
  if not peers:
    return programs
  for name, (compute, workers, threads) in _CTRANSLATE2.items():
    flags = (
      f'--model={model}',
      f'--compute={compute}',
      f'--workers={workers}',
      f'--threads={threads}',
    )
    programs[_key(name, task)] = Program(
      sys.executable, 'benchmarks.ctranslate2_decode', task.flags + flags
    )
  programs[_key(_JOEYNMT, task)] = Program(
    str(PEERS_PYTHON), 'benchmarks.peers.joeynmt_decode', task.flags
  )
  return programs


def _key(name: str, task: Task) -> str:
  return f'{name} | {task.name}'


def _export(size: str, folder: Path) -> None:
  """In a process of its own, whose memory is given back."""
  log('exporting the random model')
  flags = [f'--size={size}', f'--output={folder}']
  subprocess.run(
    [sys.executable, '-m', 'benchmarks.random_run', *flags],
    cwd=ROOT,
    check=True,
  )
