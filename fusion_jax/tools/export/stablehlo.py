"""Export of a run as StableHLO programs (https://openxla.org/stablehlo).

`jax.export` writes them for every scheme and every search, one program per
shape. The exported folder needs nothing from this project: its load.py
translates text, and export.json describes the arguments and results of the
programs.
"""

import dataclasses
import functools
import json
import logging
import runpy
import shutil
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Array, Int32

from fusion_jax import __version__
from fusion_jax.config import DecodingConfig
from fusion_jax.data.batching import Shape
from fusion_jax.decoding import batches, model_step
from fusion_jax.decoding.certify import relative_gaps, rounding
from fusion_jax.decoding.ensemble import alone
from fusion_jax.errors import InputError
from fusion_jax.files import check_new_folder, whole_folder
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.search.constraints import Requirements
from fusion_jax.search.hypotheses import Hypotheses
from fusion_jax.tools.export import check_difference, random_sentences

logger = logging.getLogger(__name__)

# Format of export.json; increases when the meaning of its content changes.
FORMAT = 1

# By default every fourth source length of decode.py is used, from the longest
# downwards: neighbouring lengths have a ratio of 4.
_LENGTH_STEP = 4

# Results of a program: fields of `Hypotheses`.
RESULTS = ('tokens', 'lengths', 'scores', 'log_probabilities')

# Arrays by name, with '/' between the parts.
Weights = dict[str, Array | np.ndarray]


@dataclasses.dataclass(frozen=True)
class SearchProgram:
  """The search of a run for one shape of a batch."""

  run: TrainedModel
  options: DecodingConfig
  shape: Shape
  n_best: int

  @property
  def arguments(self) -> tuple[str, ...]:
    """The names of the int32 arguments: source [B, S], each other one [B]."""
    names = 'source', 'lengths', 'limits'
    drawn = self.options.search == 'sample'
    return (*names, 'numbers') if drawn else names

  @property
  def file(self) -> str:
    return f'{self.shape.rows}x{self.shape.source}.stablehlo'

  def weights(self) -> Weights:
    """Return the parameters as one dictionary of arrays on the host."""
    parameters = jax.device_get(self.run.parameters)
    return traverse_util.flatten_dict(parameters, sep='/')

  def search(
    self,
    weights: Weights,
    source: Int32[Array | np.ndarray, 'B S'],
    lengths: Int32[Array | np.ndarray, ' B'],
    limits: Int32[Array | np.ndarray, ' B'],
    numbers: Int32[Array | np.ndarray, ' B'] | None = None,
  ) -> Hypotheses:
    requirements = None
    if self.options.min_length_ratio or self.options.min_length_extra:
      sizes = range(self.shape.source + 1)
      shortest = jnp.array(
        [batches.shortest_target(n, self.options) for n in sizes]
      )
      requirements = Requirements(jnp.minimum(shortest[lengths], limits))
    numbers = lengths if numbers is None else numbers
    return model_step.search_batch(
      (traverse_util.unflatten_dict(weights, sep='/'),),
      model_step.SearchRows(
        (model_step.Source(source, lengths),), limits, numbers, requirements
      ),
      models=(self.run.model,),
      settings=model_step.search_settings(
        self.options, alone(self.run), self.n_best
      ),
      max_length=self.shape.target,
    )


def check(output: Path) -> None:
  """Refuse problems that show without the run."""
  try:
    import flatbuffers  # noqa: F401  Needed by jax.export.
  except ImportError:
    raise InputError(
      '--format=stablehlo: needs the package flatbuffers; pip install '
      'flatbuffers'
    ) from None
  check_new_folder(output)


def export(
  run: TrainedModel,
  output: Path,
  shapes: Sequence[tuple[int, int]] = (),
  platforms: Sequence[str] = ('cpu', 'cuda', 'tpu'),
  n_best: int = 1,
  decoding: Mapping[str, Any] = types.MappingProxyType({}),
) -> None:
  """Write a run as StableHLO, and compare it with the run's own search.

  Args:
    shapes: (rows, source length) of each program; () uses some of the shapes of
      decode.py.
    decoding: Fields of DecodingConfig that replace the run's.
  """
  options = dataclasses.replace(run.config.decoding, **decoding)
  programs = _programs(run, options, shapes, n_best)
  with whole_folder(output) as folder:
    _write_common(folder, programs[0])
    versions = [_write_program(folder, p, platforms) for p in programs]
    description = _description(programs, platforms, max(versions))
    text = json.dumps(description, indent=2) + '\n'
    (folder / 'export.json').write_text(text)
    difference = difference_of_programs(programs, folder)
    allowed = rounding(run.config.model, run.precision)
    check_difference(output, difference, allowed)
  logger.info(
    '%s, step %d: %d programs written; same tokens, log-probabilities differ '
    'by at most %.1e for each unit',
    output,
    run.step,
    len(programs),
    difference,
  )


def _programs(
  run: TrainedModel,
  options: DecodingConfig,
  shapes: Sequence[tuple[int, int]],
  n_best: int,
) -> list[SearchProgram]:
  """Return a program for each shape, by source length, then rows."""
  if options.search == 'sample':
    options = dataclasses.replace(options, beam_size=max(n_best, 1))
  if not 1 <= n_best <= options.beam_size:
    raise InputError(
      f'--n_best={n_best}: must be between 1 and the beam size '
      f'{options.beam_size}'
    )
  # Refuse forbidden pieces that do not exist before anything is written.
  model_step.search_settings(options, alone(run), n_best)
  return [
    SearchProgram(run, options, shape, n_best)
    for shape in _shapes(shapes, options, run.longest)
  ]


def _shapes(
  given: Sequence[tuple[int, int]], options: DecodingConfig, longest: int | None
) -> list[Shape]:
  if not given:
    return _default_shapes(options, longest)
  shapes = []
  for rows, source in sorted(given, key=lambda shape: shape[::-1]):
    if longest is not None and source > longest:
      raise InputError(
        f'--shapes={rows}x{source}: the model has {longest} learned positions; '
        f'give at most {rows}x{longest}'
      )
    target = batches.target_limit(source, options, longest)
    shapes.append(Shape(rows, source, target))
  return shapes


def _default_shapes(
  options: DecodingConfig, longest: int | None
) -> list[Shape]:
  """Return a row and a full batch of some lengths, the longest included."""
  every = batches.decode_shapes(options, longest)
  chosen: list[Shape] = []
  for source in sorted({shape.source for shape in every})[::-_LENGTH_STEP]:
    of_length = [shape for shape in every if shape.source == source]
    chosen += {of_length[0], of_length[-1]}
  return sorted(chosen, key=lambda shape: (shape.source, shape.rows))


def _write_common(folder: Path, program: SearchProgram) -> None:
  run = program.run
  shutil.copyfile(Path(__file__).with_name('loader.py'), folder / 'load.py')
  (folder / 'source.model').write_bytes(run.source_tokenizer.model)
  (folder / 'target.model').write_bytes(run.target_tokenizer.model)
  weights: dict[str, Any] = program.weights()
  with (folder / 'weights.npz').open('wb') as file:
    np.savez(file, **weights)


def _write_program(
  folder: Path, program: SearchProgram, platforms: Sequence[str]
) -> int:
  """Write a program; return the version of its calling convention.

  It is lowered for several platforms at once; nothing is compiled.
  """

  def translate(weights, *rows):
    hypotheses = program.search(weights, *rows)
    return tuple(getattr(hypotheses, name) for name in RESULTS)

  rows, length, _ = program.shape
  shapes: list[tuple[int, ...]] = [(rows,)] * len(program.arguments)
  shapes[0] = rows, length
  exported = jax.export.export(jax.jit(translate), platforms=platforms)(
    jax.eval_shape(program.weights),
    *(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes),
  )
  (folder / program.file).write_bytes(exported.serialize())
  return exported.calling_convention_version


def _description(
  programs: Sequence[SearchProgram], platforms: Sequence[str], convention: int
) -> dict[str, Any]:
  first = programs[0]
  run, decoding = first.run, first.options
  return {
    'format': FORMAT,
    'versions': {
      'fusion_jax': __version__,
      'jax': jax.__version__,
      'calling_convention': convention,
    },
    'platforms': platforms,
    'step': run.step,
    'precision': run.precision,
    'source_language': run.config.data.source_language,
    'target_language': run.config.data.target_language,
    'tags': run.source_tokenizer.tags,
    'known_tags': run.source_tokenizer.known_tags,
    'arguments': ('weights', *first.arguments),
    'results': RESULTS,
    'shapes': [{'file': p.file} | p.shape._asdict() for p in programs],
    'special': {
      'source': dataclasses.asdict(run.source_tokenizer.vocabulary),
      'target': dataclasses.asdict(run.target_tokenizer.vocabulary),
    },
    'limits': {
      'ratio': decoding.max_length_ratio,
      'extra': decoding.max_length_extra,
    },
    'n_best': first.n_best,
    'search': dataclasses.asdict(decoding),
  }


def difference_of_programs(
  programs: Sequence[SearchProgram], folder: Path
) -> float:
  """Compare translations of random batches by the programs and by their run."""
  with jax.default_device(jax.local_devices(backend='cpu')[0]):
    loader = runpy.run_path(str(folder / 'load.py'))
    weights = jax.device_put(programs[0].weights())
    written = zip(programs, loader['EXPORT']['shapes'], strict=True)
    differences = [
      _difference(program, weights, functools.partial(loader['search'], shape))
      for program, shape in written
    ]
  # Unlike max(), np.max keeps NaN.
  return float(np.max(differences))


def _difference(
  program: SearchProgram,
  weights: Weights,
  exported: Callable[..., dict[str, np.ndarray]],
) -> float:
  run, (rows, source, _) = program.run, program.shape
  vocabulary = run.source_tokenizer.vocabulary
  lengths = np.linspace(source, 1, rows).round().astype(int)
  rng = np.random.default_rng(0)
  sentences = random_sentences(vocabulary, lengths, rng)
  theirs = exported(sentences, range(rows))
  limits = [
    batches.target_limit(len(sentence), program.options, run.longest)
    for sentence in sentences
  ]
  found = program.search(
    weights,
    *batches.padded(sentences, rows, source, vocabulary.end),
    np.asarray(limits, np.int32),
    np.arange(rows, dtype=np.int32),
  )
  ours = jax.device_get(found)
  for name in ('tokens', 'lengths'):
    if not np.array_equal(getattr(ours, name), theirs[name]):
      return np.inf
  # Rows with fewer hypotheses than requested have -inf in their place.
  made = ours.lengths > 0
  gaps = relative_gaps(
    theirs['log_probabilities'][made], ours.log_probabilities[made]
  )
  return float(gaps.max())
