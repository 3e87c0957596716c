r"""Every fusion scheme by one frozen recipe: size, BLEU, and its significance.

    python -m benchmarks.compare_fusions --data=DIR --workdir=DIR [--plan] \
        [--phases=A,B] [--norms=A,B] [--seeds=0,1] [--schemes=A,B] \
        [--limit=RUNS] [--minutes=M] [--keep=A,B]
    python -m benchmarks.compare_fusions --data=DIR --workdir=DIR --report
    python -m benchmarks.compare_fusions --data=DIR --workdir=DIR --losses

Trains and translates what benchmarks/comparison/recipe.toml defines, and what
the chosen runs need. It may be stopped or killed at any moment: the same
command resumes. --publish puts the tables into docs/comparison_tables.md.
--losses compares runs with the plain model of the same seed, and plain models
with the first of them, line by line on all texts: in nats a subword of the
target, with the standard error over lines, and for all lines that were not
trained on with the two-sided p-value of the normal distribution. That says
whether two trained models differ, not what another seed would give.
benchmarks/README.md tells more.
"""

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from benchmarks import common
from benchmarks.comparison import losses
from benchmarks.comparison.plan import Chosen, Contestants, Folders, Run, plan
from benchmarks.comparison.recipe import PHASES, RECIPE, read
from benchmarks.comparison.report import Tables, put_into, report
from benchmarks.comparison.runs import Results, Runner, carry_out, find_texts
from benchmarks.schemes import BASELINE
from benchmarks.serving import ROOT
from fusion_jax.config.flags import parse_arguments
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.runs.directory import locked
from fusion_jax.startup import one_line_errors, start_logging

# The phase whose checkpoints others start from.
_STARTS = 'plain'


class Comparison:
  """A recipe with its contestants, texts and results, and the chosen runs."""

  def __init__(self, arguments: argparse.Namespace):
    self._arguments = arguments
    self.recipe = recipe = read(arguments.recipe, arguments.corpus)
    self._data = recipe.phases['plain'].data
    self._folders = Folders.of(arguments.data, arguments.workdir, recipe)
    self._folder = arguments.results / recipe.corpus
    self.results = Results(self._folder, recipe.digests())
    self._contestants = Contestants(recipe.phases['plain'])
    self._tests = find_texts(recipe.tests, self._data, self._folders.data)
    self.runs = self._runs()

  def _runs(self) -> list[Run]:
    """The runs of the flags, and those that they need."""
    arguments, known = self._arguments, self._contestants
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

  def carry_out(self, deadline: float | None) -> list[str]:
    """Does the runs; the names of those that failed."""
    kept = {_STARTS, *_names('keep', self._arguments.keep, PHASES)}
    places = self.recipe, self._contestants, self._folders, self._tests
    measure = Runner(*places, deadline, kept)
    limit = self._arguments.limit
    return carry_out(self.runs, self.results, measure, limit, deadline)

  def report(self) -> str:
    language = self._data.target_language
    tables = Tables(self.results, self._tests, language).of(self.runs)
    return report(self.recipe, self.results, tables)

  def losses(self) -> str:
    runs = [run for run in self.runs if run.phase != 'tuning']
    places = self.recipe, self._folders, self._folder
    scored = losses.scored_runs(runs, *places)
    differences = losses.paired(scored)
    results = {
      'corpus': self.recipe.corpus,
      'losses': {
        run.name: {name: text.mean for name, text in texts.items()}
        for run, texts in scored.items()
      },
      'differences': {
        run.name: {name: text._asdict() for name, text in texts.items()}
        for run, texts in differences.items()
      },
    }
    path = self._arguments.output
    common.write_results(path, common.circumstances() | results)
    return losses.rendered(differences)


@one_line_errors
def main(argv: list[str]) -> None:
  begin = time.monotonic()
  arguments = _parse(argv)
  # A GPU is left to the programs that train.
  jax.config.update('jax_platforms', 'cpu')
  logging.getLogger('sacrebleu').setLevel(logging.WARNING)
  comparison = Comparison(arguments)
  if arguments.plan:
    known = comparison.results
    rows = [
      (run.name, 'finished' if run in known else '') for run in comparison.runs
    ]
    print(common.table(('run', ''), rows))
    return
  if arguments.losses:
    start_logging()
    print(comparison.losses())
    return
  failed = []
  if not (arguments.report or arguments.publish):
    minutes = arguments.minutes
    deadline = None if minutes is None else begin + 60 * minutes
    with locked(arguments.workdir):
      failed = comparison.carry_out(deadline)
  text = comparison.report()
  print(text, end='')
  if arguments.publish:
    page = ROOT / 'docs' / 'comparison_tables.md'
    put_into(page, comparison.recipe.corpus, text)
  if failed:
    names = ', '.join(failed)
    raise CheckFailed(
      f'{len(failed)} runs, which the same command tries again: {names}'
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
  add('--output', type=Path, default=common.RESULTS / 'paired_losses.json')
  add = parser.add_mutually_exclusive_group().add_argument
  add('--plan', action='store_true', help='only print the runs')
  add('--report', action='store_true', help='only print the tables')
  add('--publish', action='store_true', help='also put them into the guide')
  add('--losses', action='store_true', help='write them into --output')
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
