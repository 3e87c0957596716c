"""Compare contestants over seeds, as a study file says.

    fusion-jax study FILE.toml --workdir=DIR --plan
    fusion-jax study FILE.toml --workdir=DIR [--jobs=N] [--only=K/N]

Trains, translates and scores every contestant with every seed, each in a
process of its own, and writes DIR/study.html, with tables as CSV and LaTeX
beside it, after every run. It may be stopped at any moment: the same command
resumes, and repeats nothing. Several commands, on several machines too, share
a folder.
"""

import argparse
import logging
import os
import re
import signal
from pathlib import Path

from fusion_jax.bounds import Positive, number
from fusion_jax.config.flags import command_parser, parse_arguments
from fusion_jax.errors import CheckFailed
from fusion_jax.startup import one_line_errors, run_program, start_logging

logger = logging.getLogger(__name__)


def _part(text: str) -> tuple[int, int]:
  """Read K/N."""
  match = re.fullmatch(r'(\d{1,6})/(\d{1,6})', text)
  if not match or not 1 <= int(match[1]) <= int(match[2]):
    raise argparse.ArgumentTypeError('must be K/N with K from 1 to N')
  return int(match[1]), int(match[2])


def _cores(text: str) -> set[int]:
  try:
    cores = set(map(int, text.split(',')))
  except ValueError:
    cores = set()
  if not cores or not cores <= os.sched_getaffinity(0):
    raise argparse.ArgumentTypeError('must be cores of this machine: 0,1')
  return cores


def _parser() -> argparse.ArgumentParser:
  parser = command_parser(__doc__, 'study')
  add = parser.add_argument
  add('file', type=Path, metavar='FILE.toml')
  add('--workdir', type=Path, required=True, help='for runs and pages')
  add('--plan', action='store_true', help='only print the runs and their time')
  add('--page', action='store_true', help='only write the page')
  add(
    '--jobs',
    type=number(Positive),
    default=1,
    help='runs at a time; devices and cores are divided among them',
  )
  add(
    '--only',
    type=_part,
    default=(1, 1),
    metavar='K/N',
    help='the K-th of N parts of the runs, and what these need',
  )
  add('--nice', action='store_true', help='give way to other programs')
  add('--run', metavar='NAME', help='only carry out this run, in this process')
  add('--parent', type=int, help=argparse.SUPPRESS)
  add('--cores', type=_cores, metavar='N,N', help='the cores that it may use')
  return parser


@one_line_errors
def main(argv: list[str]) -> int:
  """Carry out what is left of a study and write its page."""
  arguments = parse_arguments(argv, _parser())
  start_logging()
  if arguments.cores:
    os.sched_setaffinity(0, arguments.cores)
  if arguments.nice:
    os.nice(10)  # The runs inherit it.
  from fusion_jax.studies import carry_out, page, plan, workers

  study = plan.read(arguments.file.absolute())
  folder = carry_out.Folder(arguments.workdir)
  if arguments.parent:
    workers.end_with(arguments.parent)
  if arguments.run:
    return carry_out.work(study, folder, arguments.run)
  for name in folder.strangers(study):
    logger.warning('%s is not of this study file and is left out', name)
  if arguments.page:
    print(page.write(study, folder))
    return 0
  part, parts = arguments.only
  team = workers.Workers(study, folder, arguments.jobs, part, parts)
  signal.signal(signal.SIGTERM, lambda *_: team.stop())
  if arguments.plan:
    team.time()
    print(page.plan_table(study, folder))
    return 0
  team.carry_out(lambda run: page.write(study, folder))
  print(page.write(study, folder))
  if team.stopped.is_set():
    raise SystemExit(75)
  failed = [run.name for run in study.runs if folder.failure(run)]
  if failed:
    raise CheckFailed(f'{len(failed)} runs failed, the first: {failed[0]}')
  return 0


if __name__ == '__main__':
  run_program(main)
