"""Writes a run in the format of another program.

    python -m fusion_jax.decoding.export --workdir=DIR --format=ctranslate2 \
        --output=DIR

ctranslate2: a folder for CTranslate2 (https://opennmt.net/CTranslate2), with
the two SentencePiece models. The run must be a plain Transformer. What was
written is loaded again and must give the log-probabilities of the run.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from fusion_jax.errors import one_line_errors
from fusion_jax.flags import parse_arguments
from fusion_jax.programs import keep_compiled, start_logging


def _ctranslate2(flags: argparse.Namespace) -> None:
  from fusion_jax.decoding.export import ctranslate2

  ctranslate2.export_run(flags.workdir, flags.step, flags.average, flags.output)


# Each imports what it needs: JAX starts slowly.
_FORMATS: dict[str, Callable[[argparse.Namespace], None]] = {
  'ctranslate2': _ctranslate2,
}


def _step(text: str) -> int | str:
  """A step, 'best' or 'last'."""
  return text if text in ('best', 'last') else int(text)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='python -m fusion_jax.decoding.export',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('--workdir', required=True, help='the run directory')
  add('--format', required=True, choices=tuple(_FORMATS))
  add('--output', required=True, type=Path, help='a new or empty folder')
  add('--step', type=_step, default='best', help="a step, 'best' or 'last'")
  add('--average', type=int, default=1, help='average so many checkpoints')
  return parser


@one_line_errors
def main(argv: list[str]) -> None:
  """Reads the flags and exports."""
  flags = parse_arguments(argv, _parser())
  start_logging()
  _FORMATS[flags.format](flags)


if __name__ == '__main__':
  keep_compiled()
  sys.exit(main(sys.argv[1:]))
