"""Losses of a comparison's runs on all texts, paired line by line.

Every run whose checkpoints are there scores the validation text, the test sets
and the first lines of the training text, with the mean of its last checkpoints.
The losses of each line are saved beside the results of the run; without
checkpoints they are read from there.
"""

import io
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float32, Int32

import fusion_jax
from benchmarks import common
from benchmarks.comparison.plan import Folders, Run
from benchmarks.comparison.recipe import Recipe
from benchmarks.comparison.report import p_value, signed
from benchmarks.comparison.runs import find_texts
from benchmarks.schemes import BASELINE
from fusion_jax.errors import InputError
from fusion_jax.evaluation.compare import read_file
from fusion_jax.files import write_whole

# Subwords of the longest line that is scored.
_LONGEST = 256
# The name of the training text, and its lines that are scored.
_TRAINING, _TRAINING_LINES = 'training', 1_000

Lines = tuple[Sequence[str], Sequence[str]]


class Losses(NamedTuple):
  """Of each line of a text: nats, and subwords with the end symbol."""

  nats: Float32[np.ndarray, ' L']
  subwords: Int32[np.ndarray, ' L']

  @property
  def mean(self) -> float:
    """Nats a subword."""
    return float(self.nats.sum(dtype=np.float64) / self.subwords.sum())


class Difference(NamedTuple):
  """In nats a subword, with its standard error over lines."""

  nats: float
  error: float

  @property
  def p(self) -> float:
    """Two-sided, of a normal distribution around 0."""
    if self.error == 0:
      return float(self.nats == 0)
    return 2 * statistics.NormalDist().cdf(-abs(self.nats) / self.error)


def difference(system: Losses, baseline: Losses) -> Difference:
  """Compare two models on the same lines.

  r = sum d / sum n, for the differences d in nats and the subwords n of L
  lines, has the error sqrt(L / (L - 1) sum (d - r n)^2) / sum n (the ratio
  estimator of a sample; Cochran 1977, section 2.11).
  """
  apart = np.subtract(system.nats, baseline.nats, dtype=np.float64)
  subwords = baseline.subwords
  total, lines = subwords.sum(), len(subwords)
  ratio = apart.sum() / total
  squares = np.square(apart - ratio * subwords).sum()
  error = math.sqrt(lines / (lines - 1) * squares) / total
  return Difference(float(ratio), float(error))


def compare(
  system: Mapping[str, Losses], baseline: Mapping[str, Losses]
) -> dict[str, Difference]:
  """Return the differences of each text, and of `all` but the training text."""
  unseen = [name for name in baseline if name != _TRAINING]
  both = (
    Losses(*map(np.concatenate, zip(*(texts[x] for x in unseen), strict=True)))
    for texts in (system, baseline)
  )
  texts = {name: difference(system[name], baseline[name]) for name in baseline}
  return texts | {'all': difference(*both)}


def paired(
  scored: Mapping[Run, Mapping[str, Losses]],
) -> dict[Run, dict[str, Difference]]:
  """Compare each run with the plain model of its seed, or of the first seed.

  A run of another machine may be there without its plain model: it is left out.
  """
  plain: dict[tuple[str, str], dict[int, Run]] = {}
  for run in scored:
    if run.scheme == BASELINE:
      plain.setdefault((run.kind, run.norm), {})[run.seed] = run
  result = {}
  for run, texts in scored.items():
    models = plain.get((run.kind, run.norm), {})
    is_plain = run in models.values()
    baseline = next(iter(models.values())) if is_plain else models.get(run.seed)
    if baseline not in (None, run):
      result[run] = compare(texts, scored[baseline])
  if not result:
    raise InputError(
      '--workdir: no run with checkpoints or saved losses has a plain model of '
      'its seed with them; train both with --keep=plain,continued,scratch'
    )
  return result


def rendered(differences: Mapping[Run, Mapping[str, Difference]]) -> str:
  names = next(iter(differences.values()))
  rows = [
    (
      f'`{run.name}`',
      *(f'{signed(x.nats, 3)} ± {x.error:.3f}' for x in texts.values()),
      p_value(texts['all'].p),
    )
    for run, texts in differences.items()
  ]
  return common.table(('nats a subword', *names, 'p'), rows)


def save_losses(path: Path, texts: Mapping[str, Losses]) -> None:
  arrays = {
    f'{name}/{field}': values
    for name, losses in texts.items()
    for field, values in losses._asdict().items()
  }
  packed = io.BytesIO()
  np.savez_compressed(packed, **arrays)
  path.parent.mkdir(parents=True, exist_ok=True)
  write_whole(path, packed.getvalue())


def read_losses(path: Path) -> dict[str, Losses]:
  try:
    with np.load(io.BytesIO(path.read_bytes())) as arrays:
      names = dict.fromkeys(name.rpartition('/')[0] for name in arrays)
      return {
        name: Losses(*(arrays[f'{name}/{field}'] for field in Losses._fields))
        for name in names
      }
  except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
    raise InputError(f'{path}: not the losses of a run: {error}') from None


def score(model: fusion_jax.TranslationModel, lines: Lines) -> Losses:
  scored = model.score(*lines, max_source_length=_LONGEST)
  return Losses(
    np.array([-math.fsum(line.tokens) for line in scored], np.float32),
    np.array([len(line.tokens) for line in scored], np.int32),
  )


def scored_runs(
  runs: Sequence[Run], recipe: Recipe, folders: Folders, results: Path
) -> dict[Run, dict[str, Losses]]:
  """The losses of all finished runs on each text."""
  texts = _texts(recipe, folders)
  scored = {}
  for run in runs:
    saved, workdir = results / f'{run.name}.losses.npz', folders.run(run)
    last = str(recipe.phases[run.phase].training.steps)
    if (workdir / 'checkpoints' / last).is_dir():
      common.log(run.name)
      model = fusion_jax.load(workdir, step='last', average=recipe.average)
      losses = {name: score(model, lines) for name, lines in texts.items()}
      save_losses(saved, losses)
    if saved.is_file():
      scored[run] = read_losses(saved)
  return scored


def _texts(recipe: Recipe, folders: Folders) -> dict[str, Lines]:
  """Sources and references, those of the training text cut."""
  data = recipe.phases['plain'].data
  (training,) = find_texts(data.train[:1], data, folders.data).values()
  others = find_texts([*data.valid, *recipe.tests], data, folders.data)
  lines = {
    name: (read_file(str(text.source)).lines, text.references)
    for name, text in {_TRAINING: training, **others}.items()
  }
  sources, references = lines[_TRAINING]
  first = slice(_TRAINING_LINES)
  return lines | {_TRAINING: (sources[first], references[first])}
