r"""Every fusion scheme by one frozen recipe: size, BLEU, and its significance.

    python -m benchmarks.compare_fusions --data=DIR --workdir=DIR [--plan] \
        [--phases=A,B] [--norms=A,B] [--seeds=0,1] [--schemes=A,B] \
        [--limit=RUNS] [--minutes=M] [--keep=A,B]
    python -m benchmarks.compare_fusions --data=DIR --workdir=DIR --report

--publish puts the tables into docs/comparison_tables.md; of Multi30k it also
draws the differences to the plain model and the times.

Trains and translates what benchmarks/comparison/recipe.toml defines, and what
the chosen runs need. It may be stopped or killed at any moment: the same
command resumes. benchmarks/README.md tells more.
"""

import argparse
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import RESULTS, make_parser, table
from benchmarks.comparison.contestants import Contestants
from benchmarks.comparison.costs import costs
from benchmarks.comparison.estimate import Estimate, duration
from benchmarks.comparison.experiment import Folders
from benchmarks.comparison.measure import Runner, hardware
from benchmarks.comparison.plan import Chosen, Run, plan
from benchmarks.comparison.recipe import PHASES, RECIPE, read
from benchmarks.comparison.report import report
from benchmarks.comparison.results import Results
from benchmarks.comparison.tables import Table, tables
from benchmarks.comparison.texts import Text, find_tests
from benchmarks.comparison.work import carry_out, locked
from benchmarks.schemes import BASELINE
from benchmarks.serving import ROOT
from fusion_jax.config.flags import parse_arguments
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.startup import one_line_errors

# The phase whose checkpoints others start from.
_STARTS = 'plain'


class Comparison:
  """A recipe with its contestants, texts and results."""

  def __init__(self, arguments: argparse.Namespace):
    self.recipe = recipe = read(arguments.recipe, arguments.corpus)
    self.data = recipe.phases['plain'].data
    self.folders = Folders.of(arguments.data, arguments.workdir, recipe)
    folder = arguments.results / recipe.corpus
    self.results = Results(folder, recipe.digests())
    self.contestants = Contestants(recipe.phases['plain'])
    self.tests: dict[str, Text] = find_tests(
      recipe.tests, self.data, self.folders.data, self.folders.texts
    )

  def runs(self, arguments: argparse.Namespace) -> list[Run]:
    """The runs of the flags, and those that they need."""
    known = self.contestants
    names = _names('schemes', arguments.schemes, known.names)
    entries = [
      known.entry(name) for name in known.names if name in (BASELINE, *names)
    ]
    chosen = Chosen(
      _names('phases', arguments.phases, PHASES),
      _names('norms', arguments.norms, self.recipe.norms),
      arguments.seeds or self.recipe.seeds,
    )
    return plan(self.recipe, entries, chosen)

  def runner(
    self,
    keep_open: Sequence[int] = (),
    deadline: float | None = None,
    kept: str = _STARTS,
  ) -> tuple[Runner, Estimate]:
    """What does the runs, and what says how long they take."""
    here = hardware()
    places = self.recipe, self.contestants, self.folders
    phases = {_STARTS, *_names('keep', kept, PHASES)}
    runner = Runner(*places, self.tests, here, keep_open, deadline, phases)
    timing = self.contestants.gflop, runner.time_plain
    return runner, Estimate(self.recipe, self.results, here, *timing)

  def tables(self, runs: Sequence[Run]) -> list[Table]:
    """The tables of these runs."""
    return tables(runs, self.results, self.tests, self.data.target_language)

  def report(self, found: Sequence[Table]) -> str:
    """The text of tables."""
    return report(self.recipe, self.results, found, _costs())


@one_line_errors
def main(argv: list[str]) -> None:
  begin = time.monotonic()
  arguments = _parse(argv)
  if arguments.priority == 'low':
    os.nice(19)
  logging.getLogger('sacrebleu').setLevel(logging.WARNING)
  if arguments.plan:
    _print_plan(Comparison(arguments), arguments)
  elif arguments.report or arguments.publish:
    comparison = Comparison(arguments)
    found = comparison.tables(comparison.runs(arguments))
    text = comparison.report(found)
    print(text, end='')
    if arguments.publish:
      from benchmarks.comparison.publish import publish

      publish(ROOT, comparison.recipe, found, text, _costs())
  else:
    with locked(arguments.workdir) as lock:
      _work(Comparison(arguments), arguments, lock, begin)


def _costs() -> dict[str, dict[str, float]]:
  return costs(sorted(RESULTS.glob('fusion_overhead*.json')))


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = make_parser(__doc__)
  add = parser.add_argument
  add('--data', type=Path, required=True, help='Multi30k, or all corpora')
  add('--workdir', type=Path, required=True, help='for the runs')
  add('--corpus', default='multi30k', help='a corpus of the recipe')
  add('--recipe', type=Path, default=RECIPE, help='a TOML file')
  add('--results', type=Path, default=RESULTS / 'comparison')
  for name in ('phases', 'norms', 'schemes'):
    add(f'--{name}', default='', help='with commas between; default: all')
  add('--seeds', type=_numbers, help='likewise')
  add('--limit', type=int, help='do so many runs at most')
  add('--minutes', type=float, help='stop after so long; runs resume')
  add('--keep', default=_STARTS, help='phases whose checkpoints stay')
  add('--priority', choices=('low', 'normal'), default='low')
  only = parser.add_mutually_exclusive_group()
  add = only.add_argument
  add('--plan', action='store_true', help='only print the runs and their time')
  add('--report', action='store_true', help='only print the tables')
  add(
    '--publish',
    action='store_true',
    help='only print the tables, and put them into the guide',
  )
  return parse_arguments(argv, parser)


def _names(flag: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
  wanted = tuple(text.split(',')) if text else tuple(known)
  for name in wanted:
    if name not in known:
      raise InputError(
        f'--{flag}: no {name!r} in the comparison; there are {", ".join(known)}'
      )
  return wanted


def _numbers(text: str) -> tuple[int, ...]:
  try:
    return tuple(map(int, text.split(',')))
  except ValueError:
    raise argparse.ArgumentTypeError(
      f'must be numbers with commas between, got {text!r}'
    ) from None


def _work(
  comparison: Comparison,
  arguments: argparse.Namespace,
  lock: int,
  begin: float,
) -> None:
  minutes = arguments.minutes
  deadline = None if minutes is None else begin + 60 * minutes
  runs = comparison.runs(arguments)
  runner, seconds = comparison.runner((lock,), deadline, arguments.keep)
  failed = carry_out(
    runs, comparison.results, runner, seconds, arguments.limit, deadline
  )
  print(comparison.report(comparison.tables(runs)), end='')
  if failed:
    raise CheckFailed(
      f'{len(failed)} runs, which the same command tries again: '
      f'{", ".join(failed)}'
    )


def _print_plan(comparison: Comparison, arguments: argparse.Namespace) -> None:
  _, seconds = comparison.runner()
  rows, total = [], 0.0
  for run in comparison.runs(arguments):
    if run in comparison.results:
      rows.append((run.name, 'finished'))
      continue
    try:
      own = seconds(run)
    except subprocess.CalledProcessError as error:
      raise CheckFailed(f'an update could not be timed: {error}') from None
    total += own
    rows.append((run.name, duration(own)))
  print(table(('run', 'time'), [*rows, ('all', duration(total))]))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
