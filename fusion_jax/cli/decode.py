"""Translates text with a trained model, line for line.

    fusion-jax decode --workdir=DIR <source.txt >translations.txt
    fusion-jax decode --workdir=DIR --input=FILE --output=FILE --reference=FILE

Or tells how probable given translations are:

    fusion-jax decode --workdir=DIR --mode=score --input=FILE --target=FILE

Either way, what the model computes inside can be written too: the weights of
its attention over the source, hard alignments, or the states of all layers;
of the given translations, or of those that are made. A line translated in
pieces has its pieces one after the other, an empty line has nothing.

    fusion-jax decode ... --attention_output=FILE.jsonl --attention_layers=last
    fusion-jax decode ... --attention_output=FILE.pharaoh --alignment_unit=word
    fusion-jax decode ... --states_output=FILE.npz

Or proves that translations do not depend on the batches they are made in:

    fusion-jax decode --workdir=DIR --mode=certify --input=FILE [--output=JSON]

Lines spread over the file are translated one by one, in smaller batches, in
other orders, padded to the longest shape, on fewer devices and with fewer or
more hypotheses kept (--n_best; all of the beam if it is not given). A table is
printed, --output has every difference. The exit code is 1 if two ways differ
by more than a tie, or the cached steps from the teacher-forced pass. A tie is
two translations whose scores differ by no more than rounding may change the
score of one. Only float32 is judged. Accelerators that round float32 products
to fewer bits need JAX_DEFAULT_MATMUL_PRECISION=highest.

Flags that are not given take the values of the run's config. A run of several
directions needs to be told which one, by --source_language, --target_language
or both; one that it was not trained in is possible where it knows both.

Files that end in .gz, .bz2 or .xz are read, and --output written, compressed.
"""

import argparse
import functools
from collections.abc import Sequence

from fusion_jax.bounds import Natural, Positive, number
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
from fusion_jax.parallel.processes import add_process_flags, processes_of, start
from fusion_jax.startup import lasting_imports, one_line_errors, start_logging


def _parser() -> argparse.ArgumentParser:
  parser = command_parser(__doc__, 'decode')
  add = parser.add_argument
  add(
    '--workdir',
    required=True,
    help='the run directory; several with commas between are an ensemble',
  )
  add('--weights', default='', help='of an ensemble, with commas between')
  add(
    '--combine',
    choices=('arithmetic', 'geometric'),
    help='the mean of an ensemble; default: arithmetic',
  )
  add('--mode', choices=('translate', 'score', 'certify'), default='translate')
  add('--input', default='', help='a text file; default: stdin')
  add('--target', default='', help='score: the translations')
  add('--prefix', default='', help='what translations begin with, line by line')
  add(
    '--per_token',
    action='store_true',
    help='score, n_best: log-probabilities of the subwords too',
  )
  add(
    '--sentences',
    type=number(Positive),
    help='certify: lines to take; default: 64',
  )
  add('--output', default='', help='a file; default: stdout; certify: JSON')
  for name in ('input', 'output'):
    add(f'--{name}_format', choices=('text', 'json'), default='text')
  add('--interactive', action='store_true', help='translate each line at once')
  add('--warm_up', action='store_true', help='compile all shapes first')
  add('--reference', default='', help='print BLEU and chrF against this file')
  add(
    '--comet',
    default='',
    metavar='MODEL',
    help='also COMET against it, by a checkpoint file or a name such as '
    'Unbabel/wmt22-comet-da; needs the package unbabel-comet',
  )
  add_checkpoint_flags(parser)
  add_precision_flag(parser)
  add(
    '--n_best',
    type=number(Natural),
    default=0,
    help='index ||| translation ||| score',
  )
  add_direction_flags(parser)
  add_fields(parser, DecodingConfig)
  add('--groups', default='', help="groups of a GTRANS decoder, 'first:last'")
  _add_views(parser)
  add_process_flags(parser)
  return parser


def _add_views(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    '--attention_output',
    default='',
    help='FILE.jsonl: {"index", "source", "target", "attention"} a line, one '
    'row of weights for each target subword; FILE.pharaoh or FILE.align: hard '
    'alignments, source-target from 0, without the end symbols',
  )
  for name, *names in (
    ('layers', 'mean', 'last', 'all'),
    ('heads', 'mean', 'all'),
  ):
    add(
      f'--attention_{name}',
      default='mean',
      type=functools.partial(_choice, names=names),
      help=f"{', '.join(map(repr, names))} or a number from 1; default: 'mean'",
    )
  add(
    '--alignment_unit',
    default='piece',
    choices=('piece', 'word'),
    help='words are linked where any of their pieces are; default: piece',
  )
  add(
    '--states_output',
    default='',
    help='FILE.npz: encoder_0 [layers + 1, source, width], decoder_0, and the '
    'ids source_0, target_0 of the first line, and so on',
  )


def _choice(text: str, names: Sequence[str]) -> str | int:
  if text in names:
    return text
  try:
    return number(Natural)(text)
  except argparse.ArgumentTypeError as error:
    listed = ', '.join(map(repr, names))
    raise argparse.ArgumentTypeError(f'{error}; or give {listed}') from None


@one_line_errors
def main(argv: list[str]) -> None:
  """Read the flags and decode."""
  arguments = parse_arguments(argv, _parser())
  processes = processes_of(arguments)
  if processes and not (arguments.input and arguments.output):
    raise InputError(
      'several processes read and write files: give --input and --output'
    )
  start_logging()
  start(processes)
  with lasting_imports():  # After the flags: JAX starts slowly.
    from fusion_jax.cli import run

  run.run(run.request_of(arguments))
