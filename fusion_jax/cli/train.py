"""Train a translation model.

    fusion-jax train --config=NAME[:VARIANT] --workdir=DIR

resumes where the run in DIR stopped; so does --workdir=DIR alone.
--config.FIELD=VALUE overrides any field of the config,
--config.model.width=256 for example.
"""

import argparse
from pathlib import Path

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import command_parser, parse_experiment, step_range
from fusion_jax.config.presets import changed
from fusion_jax.errors import InputError
from fusion_jax.parallel.processes import add_process_flags, processes_of, start
from fusion_jax.runs.directory import read_config
from fusion_jax.startup import lasting_imports, one_line_errors, start_logging


@one_line_errors
def main(argv: list[str]) -> int:
  """Read the flags and train."""
  config, arguments = parse_experiment(argv, _parser(), _stored_config)
  processes = processes_of(arguments)
  if arguments.init_from:
    config = changed(config, {'training.init_from': arguments.init_from})
  start_logging()
  start(processes)
  with lasting_imports():  # After the flags: JAX starts slowly.
    from fusion_jax.training import loop

  return loop.run(config, arguments.workdir, arguments.profile)


def _parser() -> argparse.ArgumentParser:
  parser = command_parser(__doc__, 'train')
  parser.add_argument(
    '--workdir', type=Path, required=True, help='the run directory'
  )
  parser.add_argument(
    '--init_from',
    default='',
    help='start from the parameters of this run directory',
  )
  parser.add_argument(
    '--profile',
    type=step_range,
    metavar='FIRST:LAST',
    help='write a profile of these steps to WORKDIR/profile',
  )
  add_process_flags(parser)
  return parser


def _stored_config(arguments: argparse.Namespace) -> ExperimentConfig:
  """Return the config of the run directory, to resume its training."""
  workdir = arguments.workdir
  if not (workdir / 'config.json').exists():
    raise InputError(
      f'--config is needed: {workdir} has no run to resume; '
      'fusion-jax train --help'
    )
  return read_config(workdir)
