r"""Read a model that another program trained, and write it as a run directory.

    fusion-jax import --from=marian --input=DIR --output=WORKDIR
    fusion-jax import --from=fairseq --input=DIR --output=WORKDIR \
        --source_spm=FILE [--target_spm=FILE]

marian: a folder of a MarianMT or OPUS-MT model of Hugging Face, with
config.json, model.safetensors or pytorch_model.bin, source.spm, target.spm and
vocab.json.

fairseq: a folder with the checkpoint of a Transformer, dict.SOURCE.txt and
dict.TARGET.txt; the SentencePiece models that cut its text are given apart.

Every program that reads a run can read WORKDIR: decode, score, export, and
train with --init_from=WORKDIR. Nothing in the files is executed.
"""

import argparse
import logging
from pathlib import Path

from fusion_jax.config.flags import command_parser, parse_arguments
from fusion_jax.errors import InputError
from fusion_jax.files import check_new_folder, check_regular
from fusion_jax.runs.directory import check_output
from fusion_jax.startup import one_line_errors, run_program, start_logging

logger = logging.getLogger(__name__)


def _parser() -> argparse.ArgumentParser:
  parser = command_parser(__doc__, 'import')
  add = parser.add_argument
  add('--from', dest='format', required=True, choices=('marian', 'fairseq'))
  add('--input', required=True, type=Path, help='the folder of the model')
  add('--output', required=True, type=Path, help='the new run directory')
  for side in ('source', 'target'):
    add(
      f'--{side}_language',
      default='',
      help='code of the language, where the folder does not name it',
    )
    add(
      f'--{side}_spm',
      type=Path,
      help='the SentencePiece model of the side; fairseq only',
    )
  return parser


@one_line_errors
def main(argv: list[str]) -> None:
  flags = parse_arguments(argv, _parser())
  start_logging()
  check_output(flags.output)
  check_new_folder(flags.output)
  if not flags.input.is_dir():
    raise InputError(f'--input={flags.input}: no such folder')
  if flags.format != 'fairseq' and (flags.source_spm or flags.target_spm):
    raise InputError('--source_spm and --target_spm need --from=fairseq')
  # A pipe in the place of a file would be waited for.
  for path in (*flags.input.iterdir(), flags.source_spm, flags.target_spm):
    if path and not path.is_dir():
      check_regular(path)
  _import(flags)
  print(flags.output)


def _import(flags: argparse.Namespace) -> None:
  # Imported after the flags are read, because JAX loads slowly.
  from fusion_jax.runs.checkpoint import write_run
  from fusion_jax.runs.loading import make_model
  from fusion_jax.tools.importers import fairseq, marian
  from fusion_jax.tools.importers.imported import parameters_of

  model = {'fairseq': fairseq, 'marian': marian}[flags.format].read(flags)
  config, tokenizers = model.config, model.sides.tokenizers
  parameters = parameters_of(model, make_model(config, *tokenizers))
  origin = {'imported': {'format': flags.format, 'name': config.name}}
  write_run(flags.output, config, tokenizers, parameters, origin)
  for note in model.sides.notes:
    logger.warning('%s', note)


if __name__ == '__main__':
  run_program(main)
