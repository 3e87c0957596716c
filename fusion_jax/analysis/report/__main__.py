"""Make one HTML page of a trained run, or a comparison of several.

    fusion-jax report --workdir=DIR [--output=FILE.html]
    fusion-jax report --workdir=DIR,DIR --output=FILE.html

The page shows what was trained on what data, the curves of the training, scores
on the validation text of the config or on --source and --target, the views of
the model, and translations. It needs no other file and no network. Views and
the translation are kept in the folder `analysis` of each run directory, and
are read from there the next time. For a single run the page is DIR/report.html
by default.
"""

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from fusion_jax.analysis import add_run_and_text_flags
from fusion_jax.bounds import Positive, number
from fusion_jax.cli.text_io import split_paths
from fusion_jax.config.flags import command_parser, parse_arguments
from fusion_jax.errors import InputError
from fusion_jax.files import write_whole
from fusion_jax.runs.directory import check_output
from fusion_jax.startup import one_line_errors, run_program, start_logging

logger = logging.getLogger(__name__)


def _parser() -> argparse.ArgumentParser:
  parser = command_parser(__doc__, 'report')
  add = parser.add_argument
  add('--workdir', required=True, help='run directory, or several: DIR,DIR')
  add('--output', type=Path, help='the page; needed for several runs')
  add(
    '--shown',
    type=number(Positive),
    default=12,
    help='lines shown with translations',
  )
  add('--all', action='store_true', help='make views that take minutes too')
  add_run_and_text_flags(parser)
  return parser


@one_line_errors
def main(argv: list[str]) -> None:
  """Gather the runs and write the page; its name goes to stdout."""
  start_logging()
  arguments = parse_arguments(argv, _parser())
  workdirs = list(map(Path, split_paths(arguments.workdir)))
  output = _checked(arguments.output, workdirs)
  from fusion_jax.analysis.report.contents import environment, gather
  from fusion_jax.analysis.report.page import page
  from fusion_jax.analysis.run_with_text import open_run_with_text
  from fusion_jax.runs.directory import read_config

  configs = [read_config(workdir) for workdir in workdirs]
  names = [config.name for config in configs]
  if len(set(names)) < len(names):
    names = list(map(str, workdirs))
  runs = []
  text: Sequence[tuple[str, str]] = ()
  for name, workdir in zip(names, workdirs, strict=True):
    flags = argparse.Namespace(**vars(arguments) | {'workdir': workdir})
    analysed = open_run_with_text(flags, workdir / 'analysis')
    text = text or analysed.lines
    if analysed.lines != text:
      raise InputError(
        f'{workdir}: its validation text is not that of {workdirs[0]}; give '
        '--source and --target'
      )
    runs.append(gather(analysed, name, flags))
  named = arguments.source or 'the validation text'
  if arguments.lines:
    named = f'the beginning of {named}'
  html = page(runs, text, named, arguments.shown, environment())
  write_whole(output, html.encode())
  print(output)


def _checked(output: Path | None, workdirs: Sequence[Path]) -> Path:
  """Check the flags before anything slow, and return the page's file."""
  if len({*map(os.path.realpath, workdirs)}) < len(workdirs):
    raise InputError('--workdir: a run directory is given twice')
  check_output(output or '')
  if output is None:
    if len(workdirs) > 1:
      raise InputError('--output: name the page of several runs')
    return workdirs[0] / 'report.html'
  if output.is_dir() or not output.parent.is_dir():
    raise InputError(f'--output={output}: must be a file in a directory')
  return output


if __name__ == '__main__':
  run_program(main)
