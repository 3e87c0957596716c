r"""Writes the mean of checkpoints as a run directory of its own.

    python -m fusion_jax.training.average --workdir=DIR --average=5 \
        [--average_of=best] [--step=STEP] [--parameters=last] --output=DIR2

All that reads a run reads DIR2: decode.py, the contrastive evaluation and
`train.py --init_from=DIR2`. It has no optimizer state.
"""

import argparse
import sys
from pathlib import Path

from fusion_jax.checkpoint_flags import add_checkpoint_flags
from fusion_jax.errors import InputError, one_line_errors
from fusion_jax.files import check_new_folder
from fusion_jax.flags import parse_arguments
from fusion_jax.programs import start_logging


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='python -m fusion_jax.training.average',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('--workdir', type=Path, required=True, help='the run directory')
  add('--output', type=Path, required=True, help='the new run directory')
  add_checkpoint_flags(parser)
  arguments = parse_arguments(argv, parser)
  if arguments.average < 2:
    raise InputError(
      f'--average: must be at least 2 checkpoints, got {arguments.average}'
    )
  return arguments


@one_line_errors
def main(argv: list[str]) -> None:
  """Averages, writes and prints the new run directory."""
  arguments = _parse(argv)
  start_logging()
  # After the flags: JAX starts slowly.
  from fusion_jax.training.save_mean import write_mean
  from fusion_jax.training.trained import load_flagged

  check_new_folder(arguments.output)
  run = load_flagged(arguments)
  write_mean(run, arguments.workdir, arguments.output)
  print(arguments.output)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
