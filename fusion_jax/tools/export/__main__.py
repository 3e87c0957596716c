"""Write a run in the format of another program.

    fusion-jax export --workdir=DIR --format=ctranslate2 \
        --output=DIR
    fusion-jax export --workdir=DIR --format=stablehlo \
        --output=DIR --shapes=64x32,1x32

ctranslate2: a folder for CTranslate2 (https://opennmt.net/CTranslate2), with
the two SentencePiece models. The run must be a plain Transformer. The written
model is loaded again and must give the log-probabilities of the run. It
translates in all directions of the run: the language tags, if it has any, are
pieces to put before those of a source line.

stablehlo: a folder of StableHLO programs (https://openxla.org/stablehlo), one
per shape, each the whole search of a batch, for runs of every scheme. load.py
in the folder translates text with them and needs nothing from fusion_jax. The
written programs are loaded again and must give the translations of the run.
Options of decoding that are not given take the values of the run's config.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from fusion_jax.config.flags import (
  add_checkpoint_flags,
  add_direction_flags,
  parse_arguments,
)
from fusion_jax.errors import InputError
from fusion_jax.runs.run_directory import check_output
from fusion_jax.startup import one_line_errors, run_program, start_logging
from fusion_jax.tools.export.stablehlo_options import (
  FLAGS,
  add_stablehlo_flags,
  stablehlo_options,
)

_LANGUAGES = ('source_language', 'target_language')


def _ctranslate2(flags: argparse.Namespace) -> None:
  from fusion_jax.tools.export import ctranslate2

  given = [name for name in FLAGS if name in flags]
  given += [name for name in _LANGUAGES if getattr(flags, name)]
  if given:
    raise InputError(f'--{given[0]} has no meaning with --format=ctranslate2')
  ctranslate2.export_run(
    flags.workdir,
    flags.step,
    flags.average,
    flags.output,
    flags.average_of,
    flags.parameters,
  )


def _stablehlo(flags: argparse.Namespace) -> None:
  from fusion_jax.decoding.ensemble import in_direction
  from fusion_jax.runs.loading import load_run
  from fusion_jax.tools.export import stablehlo

  stablehlo.check(flags.output)
  run = load_run(
    flags.workdir,
    flags.step,
    flags.average,
    flags.average_of,
    flags.parameters,
  )
  languages = flags.source_language, flags.target_language
  run = in_direction(run, flags.workdir, *languages)
  stablehlo.export(run, flags.output, stablehlo_options(flags))


# Each function imports what it needs, because JAX loads slowly.
_FORMATS: dict[str, Callable[[argparse.Namespace], None]] = {
  'ctranslate2': _ctranslate2,
  'stablehlo': _stablehlo,
}


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='fusion-jax export',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('--workdir', required=True, help='the run directory')
  add('--format', required=True, choices=tuple(_FORMATS))
  add('--output', required=True, type=Path, help='a new or empty folder')
  add_checkpoint_flags(parser)
  add_direction_flags(parser)
  add_stablehlo_flags(parser)
  return parser


@one_line_errors
def main(argv: list[str]) -> None:
  """Read the flags and export the run."""
  flags = parse_arguments(argv, _parser())
  start_logging()
  check_output(flags.output)
  _FORMATS[flags.format](flags)


if __name__ == '__main__':
  run_program(main)
