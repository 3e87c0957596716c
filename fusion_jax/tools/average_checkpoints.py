r"""Write the mean of several checkpoints as a new run directory.

    fusion-jax average --workdir=DIR --average=5 \
        [--average_of=best] [--step=STEP] [--parameters=last] --output=DIR2

Every program that reads a run can read DIR2, and `fusion-jax train
--init_from=DIR2` can start from it. DIR2 has no optimizer state.
"""

import argparse
from pathlib import Path

from fusion_jax.config.flags import add_checkpoint_flags, parse_arguments
from fusion_jax.errors import InputError
from fusion_jax.files import check_new_folder
from fusion_jax.runs.directory import check_output
from fusion_jax.startup import one_line_errors, run_program, start_logging


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='fusion-jax average',
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
  """Average the checkpoints, and write and print the new run directory."""
  arguments = _parse(argv)
  start_logging()
  workdir, output = arguments.workdir, arguments.output
  check_output(output)
  check_new_folder(output)
  # Imported after the flags are read, because JAX loads slowly.
  from fusion_jax.runs.checkpoint import write_run
  from fusion_jax.runs.directory import copy_corpus
  from fusion_jax.runs.loading import load_run, selection_of

  run = load_run(workdir, selection_of(arguments))
  write_run(
    output,
    run.config,
    (run.source_tokenizer, run.target_tokenizer),
    run.parameters,
    {'mean': {'run': workdir.resolve().name, 'steps': run.steps}},
    run.step,
    lambda folder: copy_corpus(workdir, folder),
  )
  print(output)


if __name__ == '__main__':
  run_program(main)
