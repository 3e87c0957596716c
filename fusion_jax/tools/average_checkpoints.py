r"""Write the mean of several checkpoints as a new run directory.

    fusion-jax average --workdir=DIR --average=5 \
        [--average_of=best] [--step=STEP] [--parameters=last] --output=DIR2

Every program that reads a run can read DIR2, and `fusion-jax train
--init_from=DIR2` can start from it. DIR2 has no optimizer state.
"""

from pathlib import Path

from fusion_jax.config.flags import (
  add_checkpoint_flags,
  command_parser,
  parse_arguments,
)
from fusion_jax.errors import InputError
from fusion_jax.files import check_new_folder
from fusion_jax.runs.directory import check_output
from fusion_jax.startup import one_line_errors, run_program, start_logging


@one_line_errors
def main(argv: list[str]) -> None:
  parser = command_parser(__doc__, 'average')
  add = parser.add_argument
  add('--workdir', type=Path, required=True, help='the run directory')
  add('--output', type=Path, required=True, help='the new run directory')
  add_checkpoint_flags(parser)
  flags = parse_arguments(argv, parser)
  if flags.average < 2:
    raise InputError(
      f'--average: must be at least 2 checkpoints, got {flags.average}'
    )
  start_logging()
  check_output(flags.output)
  check_new_folder(flags.output)
  # Imported after the flags are read, because JAX loads slowly.
  from fusion_jax.runs.checkpoint import write_run
  from fusion_jax.runs.directory import copy_corpus
  from fusion_jax.runs.loading import load_run, selection_of

  run = load_run(flags.workdir, selection_of(flags))
  write_run(
    flags.output,
    run.config,
    (run.source_tokenizer, run.target_tokenizer),
    run.parameters,
    {'mean': {'run': flags.workdir.resolve().name, 'steps': run.steps}},
    run.step,
    lambda folder: copy_corpus(flags.workdir, folder),
  )
  print(flags.output)


if __name__ == '__main__':
  run_program(main)
