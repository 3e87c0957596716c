"""Export of a run as StableHLO programs (https://openxla.org/stablehlo).

`jax.export` writes them for every scheme and every search, one program per
shape. The exported folder needs nothing from this project: its load.py
translates text, and export.json describes the arguments and results of the
programs.
"""

import dataclasses
import importlib.metadata
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.compiled import search_settings
from fusion_jax.decoding.ensemble import alone
from fusion_jax.decoding.rounding import rounding
from fusion_jax.decoding.shapes import DecodeShape, decode_shapes, target_limit
from fusion_jax.errors import InputError
from fusion_jax.files import check_new_folder, whole_folder
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.tools.export.search_program import (
  RESULTS,
  SearchProgram,
  export_program,
)
from fusion_jax.tools.export.stablehlo_agreement import largest_difference
from fusion_jax.tools.export.stablehlo_options import StablehloOptions

logger = logging.getLogger(__name__)

# Format of export.json; increases when the meaning of its content changes.
FORMAT = 1

# A serialized program has 32-bit offsets; code needs far less than 2**27.
_MOST_INSIDE = 2**31 - 2**27

# By default every fourth source length of decode.py is used, from the longest
# downwards: neighbouring lengths have a ratio of 4.
_LENGTH_STEP = 4

_NAME = '--format=stablehlo'


def check(output: Path) -> None:
  """Refuse problems that show without the run.

  Raises:
    InputError: The package flatbuffers is not installed, or the folder is not
      empty.
  """
  try:
    import flatbuffers  # noqa: F401  Needed by jax.export.
  except ImportError:
    raise InputError(
      f'{_NAME}: needs the package flatbuffers; pip install flatbuffers'
    ) from None
  check_new_folder(output)


def export(run: TrainedModel, output: Path, asked: StablehloOptions) -> None:
  """Write a run as StableHLO, and compare it with the run's own search.

  Args:
    run: Run of any scheme.
    output: New or empty folder; it appears only when it is complete.
    asked: Options of the export.

  Raises:
    InputError: A package is missing, an option does not apply to this run, or
      the folder cannot be written.
    RuntimeError: The written programs translate differently.
  """
  check(output)
  programs = _programs(run, asked)
  inside = asked.weights == 'inside'
  if inside:
    _check_size(programs[0])
  with whole_folder(output) as folder:
    _write_common(folder, run, programs[0], inside)
    versions = {_write_program(folder, each, asked) for each in programs}
    description = _description(programs, asked, max(versions))
    text = json.dumps(description, indent=2) + '\n'
    (folder / 'export.json').write_text(text)
    difference = largest_difference(programs, folder)
    allowed = rounding(run.config.model)
    if not difference <= allowed:
      raise RuntimeError(
        f'{output}: the exported programs differ by {difference:.1e} for each '
        "unit of a translation's log-probability, more than the "
        f'{allowed:.1e} of rounding; not exported'
      )
  logger.info(
    '%s, step %d: %d programs written; same tokens, log-probabilities differ '
    'by at most %.1e for each unit',
    output,
    run.step,
    len(programs),
    difference,
  )


def _programs(
  run: TrainedModel, asked: StablehloOptions
) -> list[SearchProgram]:
  """Return a program for each shape, by source length, then rows."""
  options = dataclasses.replace(run.config.decoding, **asked.decoding)
  if options.search == 'sample':
    options = dataclasses.replace(options, beam_size=max(asked.n_best, 1))
  if not 1 <= asked.n_best <= options.beam_size:
    raise InputError(
      f'--n_best={asked.n_best}: must be between 1 and the beam size '
      f'{options.beam_size}'
    )
  # Refuse forbidden pieces that do not exist before anything is written.
  search_settings(options, alone(run), asked.n_best)
  return [
    SearchProgram(run, options, shape, asked.n_best)
    for shape in _shapes(asked.shapes, options, run.longest)
  ]


def _shapes(
  given: tuple[tuple[int, int], ...],
  options: DecodingConfig,
  longest: int | None,
) -> list[DecodeShape]:
  for rows, source in given:
    if longest is not None and source > longest:
      raise InputError(
        f'--shapes={rows}x{source}: the model has {longest} learned positions; '
        f'give at most {rows}x{longest}'
      )
  if not given:
    return _default_shapes(options, longest)
  return [
    DecodeShape(rows, source, target_limit(source, options, longest))
    for source, rows in sorted((source, rows) for rows, source in given)
  ]


def _default_shapes(
  options: DecodingConfig, longest: int | None
) -> list[DecodeShape]:
  """Return a row and a full batch of some lengths, the longest included."""
  every = decode_shapes(options, longest)
  chosen: list[DecodeShape] = []
  for source in sorted({each.source for each in every})[::-_LENGTH_STEP]:
    own = [each for each in every if each.source == source]
    chosen += {own[0], own[-1]}
  return sorted(chosen, key=lambda shape: (shape.source, shape.rows))


def _check_size(program: SearchProgram) -> None:
  size = sum(array.nbytes for array in program.weights().values())
  if size > _MOST_INSIDE:
    raise InputError(
      f'--weights=inside: the parameters have {size / 2**30:.1f} GiB, a '
      'program can hold less than 2 GiB; give --weights=beside'
    )


def _write_common(
  folder: Path, run: TrainedModel, program: SearchProgram, inside: bool
) -> None:
  shutil.copyfile(Path(__file__).with_name('loader.py'), folder / 'load.py')
  (folder / 'source.model').write_bytes(run.source_tokenizer.model)
  (folder / 'target.model').write_bytes(run.target_tokenizer.model)
  if not inside:
    weights: dict[str, Any] = program.weights()
    with (folder / 'weights.npz').open('wb') as file:
      np.savez(file, **weights)


def _write_program(
  folder: Path, program: SearchProgram, asked: StablehloOptions
) -> int:
  """Write a program; return the version of its calling convention."""
  exported = export_program(
    program, asked.platforms, inside=asked.weights == 'inside'
  )
  (folder / _file(program.shape)).write_bytes(exported.serialize())
  return exported.calling_convention_version


def _file(shape: DecodeShape) -> str:
  return f'{shape.rows}x{shape.source}.stablehlo'


def _description(
  programs: list[SearchProgram], asked: StablehloOptions, convention: int
) -> dict[str, Any]:
  """Return the content of export.json."""
  first = programs[0]
  run, options = first.run, first.options
  before = ('weights',) if asked.weights == 'beside' else ()
  return {
    'format': FORMAT,
    'versions': {
      'fusion_jax': _own_version(),
      'jax': jax.__version__,
      'calling_convention': convention,
    },
    'platforms': asked.platforms,
    'step': run.step,
    'source_language': run.config.data.source_language,
    'target_language': run.config.data.target_language,
    'tags': run.source_tokenizer.tags,
    'known_tags': run.source_tokenizer.known_tags,
    'arguments': (*before, *first.arguments),
    'results': RESULTS,
    'shapes': [
      {'file': _file(each.shape)} | each.shape._asdict() for each in programs
    ],
    'special': {
      'source': dataclasses.asdict(run.source_tokenizer.vocabulary),
      'target': dataclasses.asdict(run.target_tokenizer.vocabulary),
    },
    'limits': {
      'ratio': options.max_length_ratio,
      'extra': options.max_length_extra,
    },
    'n_best': asked.n_best,
    'search': dataclasses.asdict(options),
  }


def _own_version() -> str | None:
  """Return this package's version; None if it runs without being installed."""
  try:
    return importlib.metadata.version('fusion_jax')
  except importlib.metadata.PackageNotFoundError:
    return None
