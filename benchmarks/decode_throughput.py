"""Translation: sentences/s and output tokens/s, in batches and one by one.

    python -m benchmarks.decode_throughput --workdir=RUN --input=FILE
    python -m benchmarks.decode_throughput --workdir=RUN --input=FILE --mixed
    python -m benchmarks.decode_throughput --size=base [--peers]

What is compiled in the first pass is not timed. With --mixed, the lines of the
file take turns with as many lines of one length: the line whose source and
translation have the lengths nearest to the mean, again and again, by the last
of --beams. With --size, all contestants translate the same random ids with
random parameters, and make exactly 32 decoder steps for every sentence; they
take turns, task by task, and the same command resumes.
"""

import argparse
import dataclasses
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.common import (
  RESULTS,
  as_flags,
  cells,
  circumstances,
  log,
  make_parser,
  resume,
  spread,
  table,
  write_results,
)
from benchmarks.serving import ROOT, limit_cores, peak_memory_mb
from benchmarks.side_by_side import Program, measure, peer, rates
from benchmarks.sizes import LENGTH, SIZES, TASKS, Task
from fusion_jax.config.flags import parse_arguments
from fusion_jax.decoding.translate import Translator
from fusion_jax.evaluation.systems import read_file
from fusion_jax.runs.loading import TrainedModel, load_run
from fusion_jax.startup import one_line_errors, start_logging, use_huge_pages

_OURS = 'fusion_jax'
_CTRANSLATE2 = {
  'CTranslate2 float32, 2 workers x 1 thread': ('float32', 2, 1),
  'CTranslate2 float32, 1 worker x 2 threads': ('float32', 1, 2),
  'CTranslate2 int8, 2 workers x 1 thread': ('int8', 2, 1),
}
_Summary = Mapping[str, Mapping[str, Any]]


class Setting:
  """One way to translate lines, with its times so far.

  `lengths` are the subwords of each source and translation, with end symbols.
  """

  def __init__(
    self, run: TrainedModel, lines: Sequence[str], beam: int, batch: bool = True
  ):
    options = dataclasses.replace(run.config.decoding, beam_size=beam)
    self._translator = Translator(run, options)
    self._groups = [lines] if batch else [[line] for line in lines]
    self._sentences = len(lines)
    self.first, self.seconds = self._pass(), list[float]()

  def run(self) -> None:
    """Translates everything once more."""
    self.seconds.append(self._pass())

  def _pass(self) -> float:
    begin = time.perf_counter()
    best = [
      n_best[0]
      for group in self._groups
      for n_best in self._translator.translate_n_best(group)
    ]
    seconds = time.perf_counter() - begin
    self.lengths = [
      tuple(sum(map(len, side)) for side in zip(*line.pairs, strict=True))
      for line in best
      if line.pairs
    ]
    return seconds

  def results(self) -> dict[str, Any]:
    """Rates over the timed passes."""
    speeds = [self._sentences / taken for taken in self.seconds]
    tokens = sum(target for _, target in self.lengths) / self._sentences
    return {
      'sentences': self._sentences,
      'sentences_per_second': spread(speeds),
      'output_tokens_per_sentence': tokens,
      'output_tokens_per_second': spread([speed * tokens for speed in speeds]),
      'mean_lengths': np.mean(self.lengths, axis=0).tolist(),
      'first_pass_seconds': self.first,
    }


def typical(lines: Sequence[str], lengths: Sequence[tuple[int, int]]) -> str:
  """The line with the lengths nearest to the mean lengths."""
  pairs = np.asarray(lengths, float)
  return lines[int(np.abs(pairs - pairs.mean(0)).sum(1).argmin())]


@one_line_errors
def main(argv: list[str]) -> None:
  arguments = _parse(argv)
  if arguments.size:
    print(compare(arguments))
    return
  start_logging()
  results = _measure(arguments)
  name = 'mixed_lengths' if arguments.mixed else 'decode_throughput'
  write_results(arguments.output or RESULTS / f'{name}.json', results)
  print(_report(results))


def _measure(arguments: argparse.Namespace) -> dict[str, Any]:
  """All settings in turns."""
  run = load_run(arguments.workdir)
  every = filter(None, read_file(arguments.input).lines)
  lines = list(itertools.islice(every, arguments.sentences))
  settings = (_mixed if arguments.mixed else _settings)(run, lines, arguments)
  for _ in range(arguments.rounds):
    for setting in settings.values():
      setting.run()
  return circumstances() | {
    'run': Path(arguments.workdir).name,
    'parameters': sum(x.size for x in jax.tree.leaves(run.parameters)),
    'settings': {name: setting.results() for name, setting in settings.items()},
    'peak_memory_mb': peak_memory_mb(),
  }


def _settings(
  run: TrainedModel, lines: list[str], arguments: argparse.Namespace
) -> dict[str, Setting]:
  settings = {}
  for batch in (True, False) if arguments.single else (True,):
    for beam in arguments.beams:
      name = 'greedy' if beam == 1 else f'beam {beam}'
      chosen = lines if batch else lines[: arguments.single]
      name += ', batches' if batch else ', one by one'
      settings[name] = Setting(run, chosen, beam, batch)
  return settings


def _mixed(
  run: TrainedModel, lines: list[str], arguments: argparse.Namespace
) -> dict[str, Setting]:
  mixed = Setting(run, lines, arguments.beams[-1])
  same = [typical(lines, mixed.lengths)] * len(lines)
  alike = Setting(run, same, arguments.beams[-1])
  return {'mixed lengths': mixed, 'one length': alike}


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = make_parser(__doc__)
  add = parser.add_argument
  add('--workdir', default='')
  add('--input', default='')
  add('--mixed', action='store_true', help='beside lines of one length')
  add('--sentences', type=int, default=1_000)
  add('--beams', type=int, nargs='+', default=[1, 4], help='1: greedy')
  add('--single', type=int, default=50, help='one by one; 0: none')
  add('--rounds', type=int, default=3)
  add('--output', type=Path)
  add('--size', choices=SIZES, help='random ids instead')
  add('--peers', action='store_true', help='with --size')
  add('--steps', type=int, default=1, help='of a round')
  add('--fresh', action='store_true', help='start anew')
  arguments = parse_arguments(argv, parser)
  if not (arguments.size or (arguments.workdir and arguments.input)):
    parser.error('give --workdir and --input, or --size')
  return arguments


def _report(results: dict[str, Any]) -> str:
  rows = [
    (
      name,
      f'{setting["sentences"]:,}',
      f'{setting["sentences_per_second"]["median"]:.1f}',
      *cells(setting['output_tokens_per_second']),
      f'{setting["output_tokens_per_sentence"]:.1f}',
    )
    for name, setting in results['settings'].items()
  ]
  header = ('', 'sentences', 'sentences/s', 'tokens/s', 'min', 'max')
  text = table((*header, 'tokens/sentence'), rows)
  if 'mixed lengths' in results['settings']:
    mixed, alike = (
      setting['output_tokens_per_second']['median']
      for setting in results['settings'].values()
    )
    text += f'\nratio {mixed / alike:.2f}'
  return text


def compare(arguments: argparse.Namespace) -> str:
  """Measures what is missing of the comparison on random ids."""
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
      export = '-m', 'benchmarks.contestants', 'export', f'--output={model}'
      command = [sys.executable, *export, f'--size={size}']
      subprocess.run(command, cwd=ROOT, check=True)
    for task in TASKS:
      programs = _programs(task, size, model if arguments.peers else None)
      measure(results, programs, arguments.rounds, arguments.steps, path)
  results['summary'] = _summarise(results['rounds'])
  write_results(path, results)
  return _report_comparison(results['summary'])


def _programs(task: Task, size: str, model: Path | None) -> dict[str, Program]:
  """The contestants of a task; the others only with an exported model."""
  flags = as_flags({'size': size, **task._asdict()})
  programs = {_OURS: Program('benchmarks.contestants', ('search', *flags))}
  if model:
    for name, (compute, workers, threads) in _CTRANSLATE2.items():
      ways = {'model': model, 'compute': compute, 'workers': workers}
      ways |= {'threads': threads}
      programs[name] = Program(
        'benchmarks.peers.ctranslate2_search', (*flags, *as_flags(ways))
      )
    programs['JoeyNMT'] = peer('joeynmt_contestants', 'search', *flags)
  return {f'{name} | {task.name}': one for name, one in programs.items()}


def _summarise(rounds: Mapping[str, list[dict[str, Any]]]) -> _Summary:
  """Output tokens/s of every task and contestant."""
  summary: dict[str, dict[str, Any]] = {}
  for task in TASKS:
    for key, answers in rounds.items():
      name, _, of_task = key.partition(' | ')
      if of_task == task.name:
        last = rates(answers, 'output_tokens_per_second', task.output_tokens)
        summary.setdefault(task.name, {})[name] = last
  return summary


def _report_comparison(summary: _Summary) -> str:
  """Output tokens/s, ratios, and whether greedy translations are the same."""

  def speed(name: str, answers: Mapping[str, Any]) -> float | None:
    known = answers.get(name, {}).get('output_tokens_per_second', {})
    return known.get('median')

  def cell(name: str, answers: Mapping[str, Any]) -> str:
    ours, theirs = speed(_OURS, answers), speed(name, answers)
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
  return '\n'.join((text, table(('', *summary), rows), *_notes(summary)))


def _notes(summary: _Summary) -> list[str]:
  notes = []
  for task in (task for task in TASKS if task.beam == 1):
    answers = summary.get(task.name, {})
    ours = answers.get(_OURS, {}).get('first')
    for name, answer in answers.items():
      if name != _OURS and ours and 'first' in answer:
        same = 'the same' if answer['first'] == ours else 'another'
        notes.append(f'{task.name}, {name}: {same} first translation')
  return notes


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
