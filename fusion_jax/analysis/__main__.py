"""Look at what a trained run has learned: numbers and a figure per view.

    fusion-jax analyse VIEW [VIEW ...] --workdir=DIR [--output=DIR]
    fusion-jax analyse all --workdir=DIR

Each view writes VIEW.json, VIEW.png and VIEW.svg into --output, by default
the folder `analysis` of the run directory, and prints a summary to stdout.
Views that read text take the validation text of the run's config, or the lines
of --source and --target. `all` is every view that applies to the run and does
not take minutes.
"""

import argparse
import logging
import time
from pathlib import Path

from fusion_jax.analysis import add_run_and_text_flags
from fusion_jax.config.flags import command_parser, parse_arguments
from fusion_jax.errors import InputError
from fusion_jax.runs.directory import check_output
from fusion_jax.startup import one_line_errors, run_program, start_logging

logger = logging.getLogger(__name__)

_ALL = 'all'


def _parser() -> argparse.ArgumentParser:
  from fusion_jax.analysis.views import VIEWS

  listed = '\n'.join(
    f'  {view.name:<16} {view.title} ({view.source}); needs {view.needs}'
    for view in VIEWS.values()
  )
  parser = command_parser(f'{__doc__}\nviews:\n{listed}\n', 'analyse')
  parser.add_argument(
    'views', nargs='+', metavar='VIEW', choices=(_ALL, *VIEWS)
  )
  parser.add_argument('--workdir', type=Path, required=True)
  parser.add_argument('--output', type=Path, help='a folder')
  add_run_and_text_flags(parser)
  return parser


@one_line_errors
def main(argv: list[str]) -> None:
  """Apply the views, write their files and print their summaries."""
  start_logging()
  from fusion_jax.analysis.run_with_text import open_run_with_text
  from fusion_jax.analysis.views import VIEWS, check_view, look_at, views_of

  arguments = parse_arguments(argv, _parser())
  check_output(arguments.output or '')
  folder = arguments.output or arguments.workdir / 'analysis'
  analysed = open_run_with_text(arguments, folder)
  config, workdir = analysed.run.config.model, arguments.workdir
  every = _ALL in arguments.views
  if every:
    chosen = [view for view in views_of(config) if not view.slow]
  else:
    chosen = [VIEWS[name] for name in arguments.views]
  for view in chosen:
    check_view(view, config, str(workdir))
  for number, view in enumerate(chosen, start=1):
    begin = time.monotonic()
    try:
      content = look_at(view, analysed, folder)
    except InputError as error:
      if not every or view.reads != 'metrics':
        raise
      # A short training, an import and a mean of checkpoints have none.
      logger.warning('%s is left out: %s', view.name, error)
      continue
    done, seconds = f'{number} of {len(chosen)}', time.monotonic() - begin
    file = folder / f'{view.name}.png'
    logger.info('%s: %s in %.1f s: %s', done, view.name, seconds, file)
    print(f'{view.name}: {content["summary"]}')


if __name__ == '__main__':
  run_program(main)
