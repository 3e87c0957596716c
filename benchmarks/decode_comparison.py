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
  as_flags,
  log,
  resume,
  table,
  write_results,
)
from benchmarks.decode_task import LENGTH, TASKS, Task
from benchmarks.serving import ROOT, limit_cores
from benchmarks.train_throughput import Program, measure, rates

_OURS = 'fusion_jax'
_CTRANSLATE2 = {
  'CTranslate2 float32, 2 workers x 1 thread': ('float32', 2, 1),
  'CTranslate2 float32, 1 worker x 2 threads': ('float32', 1, 2),
  'CTranslate2 int8, 2 workers x 1 thread': ('int8', 2, 1),
}
_Summary = Mapping[str, Mapping[str, Any]]


def compare(arguments: argparse.Namespace) -> str:
  """Measures what is missing."""
  size = arguments.size
  path = arguments.output or RESULTS / f'decode_throughput_{size}.json'
  settings = {'size': size, 'steps': arguments.steps}
  results = resume(path, settings, arguments.fresh)
  limit_cores()
  with tempfile.TemporaryDirectory() as folder:
    model = Path(folder) / 'model'
    if arguments.peers:
      log('exporting the random model')
      # In a process of its own, whose memory is given back.
      export = '-m', 'benchmarks.fusion_jax_decode', f'--export={model}'
      command = [sys.executable, *export, f'--size={size}']
      subprocess.run(command, cwd=ROOT, check=True)
    for task in TASKS:
      programs = _programs(task, model, arguments.peers)
      measure(results, programs, arguments, path)
  results['summary'] = _summarise(results['rounds'])
  write_results(path, results)
  return _report(results['summary'])


def _summarise(rounds: Mapping[str, list[dict[str, Any]]]) -> _Summary:
  """Output tokens/s of every task and contestant."""
  summary: dict[str, dict[str, Any]] = {}
  for task in TASKS:
    for key, answers in rounds.items():
      name, _, own_task = key.partition(' | ')
      if own_task == task.name:
        found = rates(answers, task.output_tokens)
        found['output_tokens_per_second'] = found.pop('rates')
        summary.setdefault(task.name, {})[name] = found
  return summary


def _report(summary: _Summary) -> str:
  """Output tokens/s, ratios, and whether greedy translations are the same."""

  def cell(name: str, found: Mapping[str, Any], ratio: bool) -> str:
    if name not in found or (ratio and _OURS not in found):
      return ''
    ours, own = (
      found.get(each, {}).get('output_tokens_per_second', {}).get('median')
      for each in (_OURS, name)
    )
    return f'{ours / own:.2f}' if ratio else f'{own:,.0f}'

  names = dict.fromkeys(name for own in summary.values() for name in own)
  speeds, ratios = (
    [
      (name, *(cell(name, own, ratio) for own in summary.values()))
      for name in names
    ]
    for ratio in (False, True)
  )
  header = ('', *summary)
  return '\n'.join(
    (
      f'output tokens/s, {LENGTH} a sentence',
      table(header, speeds),
      f'\n{_OURS}, times',
      table(header, [row for row in ratios if row[0] != _OURS]),
      *_notes(summary),
    )
  )


def _notes(summary: _Summary) -> list[str]:
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
  programs = {_OURS: Program('benchmarks.fusion_jax_decode', task.flags)}
  if peers:
    for name, (compute, workers, threads) in _CTRANSLATE2.items():
      own = {'model': model, 'compute': compute}
      own |= {'workers': workers, 'threads': threads}
      programs[name] = Program(
        'benchmarks.ctranslate2_decode', (*task.flags, *as_flags(own))
      )
    programs['JoeyNMT'] = Program(
      'benchmarks.peers.joeynmt_decode', task.flags, str(PEERS_PYTHON)
    )
  return {f'{name} | {task.name}': own for name, own in programs.items()}
