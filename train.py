"""Trains a translation model.

    python train.py --config=configs/NAME.py[:VARIANT] --workdir=DIR

The same command resumes where the run stopped. --config.FIELD=VALUE overrides
any field of the config, --config.model.width=256 for example.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from fusion_jax.config.flags import parse_experiment, step_range
from fusion_jax.parallel.distributed import (
  add_process_flags,
  processes_of,
  start,
)
from fusion_jax.startup import (
  keep_compiled,
  lasting_imports,
  one_line_errors,
  start_logging,
  use_huge_pages,
)


@one_line_errors
def main(argv: list[str]) -> None:
  """Read the flags and train."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
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
  config, arguments = parse_experiment(argv, parser)
  processes = processes_of(arguments)
  if arguments.init_from:
    training = dataclasses.replace(
      config.training, init_from=arguments.init_from
    )
    config = dataclasses.replace(config, training=training)
  start_logging()
  start(processes)
  with lasting_imports():  # After the flags: JAX starts slowly.
    from fusion_jax.training import loop

  loop.run(config, arguments.workdir, arguments.profile)


if __name__ == '__main__':
  use_huge_pages()
  keep_compiled()
  sys.exit(main(sys.argv[1:]))
