r"""Write a run in the format of another program.

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
import dataclasses
import re
from pathlib import Path

from fusion_jax.bounds import Positive, number
from fusion_jax.config.decoding import DecodingConfig
from fusion_jax.config.flags import (
  add_checkpoint_flags,
  add_direction_flags,
  add_fields,
  add_precision_flag,
  command_parser,
  parse_arguments,
)
from fusion_jax.errors import InputError
from fusion_jax.runs.directory import check_output, read_config
from fusion_jax.startup import one_line_errors, run_program, start_logging

_PLATFORMS = ('cpu', 'cuda', 'rocm', 'tpu')

# Flags of StableHLO alone; those of decoding take the place of the run's.
_OWN = ('shapes', 'platforms', 'n_best')
_DECODING = tuple(
  field.name
  for field in dataclasses.fields(DecodingConfig)
  if field.name
  not in ('forbidden', 'max_source_length', 'batch_tokens', 'bleu_tokenizer')
)


def _ctranslate2(flags: argparse.Namespace) -> None:
  from fusion_jax.runs.loading import load_run, selection_of
  from fusion_jax.tools.export import ctranslate2

  for name in (*_OWN, *_DECODING, 'source_language', 'target_language'):
    if getattr(flags, name, ''):
      raise InputError(f'--{name} has no meaning with --format=ctranslate2')
  if flags.precision != 'float32':
    raise InputError(
      '--precision has no meaning with --format=ctranslate2; its own '
      'compute_type chooses it'
    )
  ctranslate2.check(flags.output)
  ctranslate2.check_model(read_config(Path(flags.workdir)).model)
  run = load_run(flags.workdir, selection_of(flags))
  ctranslate2.export(run, flags.output)


def _stablehlo(flags: argparse.Namespace) -> None:
  from fusion_jax.decoding.ensemble import in_direction
  from fusion_jax.runs.loading import load_run, selection_of
  from fusion_jax.tools.export import stablehlo

  stablehlo.check(flags.output)
  run = load_run(flags.workdir, selection_of(flags))
  languages = flags.source_language, flags.target_language
  run = in_direction(run, flags.workdir, *languages)
  given = vars(flags).items()
  own = {name: value for name, value in given if name in _OWN}
  decoding = {name: value for name, value in given if name in _DECODING}
  stablehlo.export(run, flags.output, **own, decoding=decoding)


# Each function imports what it needs, because JAX loads slowly.
_FORMATS = {'ctranslate2': _ctranslate2, 'stablehlo': _stablehlo}


def _parser() -> argparse.ArgumentParser:
  parser = command_parser(__doc__, 'export')
  add = parser.add_argument
  add('--workdir', required=True, help='the run directory')
  add('--format', required=True, choices=tuple(_FORMATS))
  add('--output', required=True, type=Path, help='a new or empty folder')
  add_checkpoint_flags(parser)
  add_direction_flags(parser)
  # Flags that are not given are absent from the namespace.
  group = parser.add_argument_group(
    'stablehlo', argument_default=argparse.SUPPRESS
  )
  add_precision_flag(group)
  add = group.add_argument
  add('--shapes', type=_shapes, metavar='64x32,1x32', help='ROWSxLENGTH, ...')
  add('--platforms', type=_platforms, metavar='cpu,cuda,tpu')
  add(
    '--n_best',
    type=number(Positive),
    help='translations of a sentence; default: 1',
  )
  add_fields(group, DecodingConfig, _DECODING)
  return parser


def _shapes(text: str) -> tuple[tuple[int, int], ...]:
  return tuple(dict.fromkeys(map(_shape, text.split(','))))


def _shape(text: str) -> tuple[int, int]:
  match = re.fullmatch('([1-9][0-9]*)x([1-9][0-9]*)', text)
  if not match:
    raise argparse.ArgumentTypeError(
      f'must be ROWSxLENGTH with numbers from 1, as 64x32, got {text!r}'
    )
  return int(match[1]), int(match[2])


def _platforms(text: str) -> tuple[str, ...]:
  names = tuple(dict.fromkeys(text.split(',')))
  unknown = [name for name in names if name not in _PLATFORMS]
  if unknown:
    raise argparse.ArgumentTypeError(
      f'{unknown[0]!r} is no platform; must be of {", ".join(_PLATFORMS)}'
    )
  if 'cpu' not in names:
    raise argparse.ArgumentTypeError(
      f'{text}: must have cpu too, on which the export is checked'
    )
  return names


@one_line_errors
def main(argv: list[str]) -> None:
  flags = parse_arguments(argv, _parser())
  start_logging()
  check_output(flags.output)
  _FORMATS[flags.format](flags)


if __name__ == '__main__':
  run_program(main)
