r"""Every fusion scheme by one frozen recipe: size, BLEU, and its significance.

    python -m benchmarks.compare_fusions --data=DIR --workdir=DIR [--plan] \
        [--phases=A,B] [--norms=A,B] [--seeds=0,1] [--schemes=A,B] \
        [--limit=RUNS] [--minutes=M] [--keep=A,B]
    python -m benchmarks.compare_fusions --data=DIR --workdir=DIR --report

Trains and translates what benchmarks/comparison/recipe.toml defines, and what
the chosen runs need. It may be stopped or killed at any moment: the same
command resumes. --publish puts the tables into docs/comparison_tables.md.
benchmarks/README.md tells more.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import common
from benchmarks.comparison.plan import Chosen, Contestants, Folders, Run, plan
from benchmarks.comparison.recipe import PHASES, RECIPE, read
from benchmarks.comparison.report import Tables, put_into, report
from benchmarks.comparison.runs import Results, Runner, carry_out, find_texts
from benchmarks.schemes import BASELINE
from benchmarks.serving import ROOT
from fusion_jax.config.flags import parse_arguments
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.runs.directory import locked
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
    self.tests = find_texts(recipe.tests, self.data, self.folders.data)

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

  def carry_out(
    self, arguments: argparse.Namespace, deadline: float | None
  ) -> list[str]:
    """Does the runs; the names of those that failed."""
    kept = {_STARTS, *_names('keep', arguments.keep, PHASES)}
    places = self.recipe, self.contestants, self.folders, self.tests
    measure = Runner(*places, deadline, kept)
    runs, limit = self.runs(arguments), arguments.limit
    return carry_out(runs, self.results, measure, limit, deadline)

  def report(self, runs: Sequence[Run]) -> str:
    """The text of the tables of these runs."""
    language = self.data.target_language
    tables = Tables(self.results, self.tests, language).of(runs)
    return report(self.recipe, self.results, tables)


@one_line_errors
def main(argv: list[str]) -> None:
  begin = time.monotonic()
  arguments = _parse(argv)
  if arguments.priority == 'low':
    os.nice(19)
  logging.getLogger('sacrebleu').setLevel(logging.WARNING)
  comparison = Comparison(arguments)
  runs = comparison.runs(arguments)
  if arguments.plan:
    known = comparison.results
    rows = [(run.name, 'finished' if run in known else '') for run in runs]
    print(common.table(('run', ''), rows))
    return
  failed = []
  if not (arguments.report or arguments.publish):
    minutes = arguments.minutes
    deadline = None if minutes is None else begin + 60 * minutes
    with locked(arguments.workdir):
      failed = comparison.carry_out(arguments, deadline)
  text = comparison.report(runs)
  print(text, end='')
  if arguments.publish:
    page = ROOT / 'docs' / 'comparison_tables.md'
    put_into(page, comparison.recipe.corpus, text)
  if failed:
    raise CheckFailed(
      f'{len(failed)} runs, which the same command tries again: '
      f'{", ".join(failed)}'
    )


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = common.make_parser(__doc__)
  add = parser.add_argument
  add('--data', type=Path, required=True, help='Multi30k, or all corpora')
  add('--workdir', type=Path, required=True, help='for the runs')
  add('--corpus', default='multi30k', help='a corpus of the recipe')
  add('--recipe', type=Path, default=RECIPE, help='a TOML file')
  add('--results', type=Path, default=common.RESULTS / 'comparison')
  for name in ('phases', 'norms', 'schemes'):
    add(f'--{name}', default='', help='with commas between; default: all')
  add('--seeds', type=_numbers, help='likewise')
  add('--limit', type=int, help='do so many runs at most')
  add('--minutes', type=float, help='stop after so long; runs resume')
  add('--keep', default=_STARTS, help='phases whose checkpoints stay')
  add('--priority', choices=('low', 'normal'), default='low')
  add = parser.add_mutually_exclusive_group().add_argument
  add('--plan', action='store_true', help='only print the runs')
  add('--report', action='store_true', help='only print the tables')
  add('--publish', action='store_true', help='also put them into the guide')
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


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
