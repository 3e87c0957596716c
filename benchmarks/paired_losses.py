"""Losses of the comparison's runs on all texts, paired line by line.

    python -m benchmarks.paired_losses --data=DIR --workdir=DIR \
        [--corpus=multi30k_mlrf] [--norm=pre] [--phase=scratch]

Every run from scratch, or continued from the plain model, whose checkpoints are
in the folder of `compare_fusions` (--keep=plain,continued,scratch) scores the
validation text, the test sets and the first lines of the training text, with
the mean of its last checkpoints. The losses of each line are saved beside the
results of the run; without checkpoints they are read from there. Prints how far
the loss of a run is from that of the plain model of the same seed, and how far
the plain models are from the first of them: in nats a subword of the target,
with the standard error over lines, for each text, and for all lines that were
not trained on, with the two-sided p-value of the normal distribution. That says
whether two trained models differ, not what another seed would give.
"""

import argparse
import io
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from jaxtyping import Float32, Int32

import fusion_jax
from benchmarks import common
from benchmarks.comparison.plan import Chosen, Contestants, Folders, Run, plan
from benchmarks.comparison.recipe import NORMS, RECIPE, Phase, Recipe, read
from benchmarks.comparison.report import p_value, signed
from benchmarks.comparison.runs import find_texts
from benchmarks.schemes import BASELINE
from fusion_jax.config import ExperimentConfig
from fusion_jax.errors import InputError
from fusion_jax.evaluation.systems import read_file
from fusion_jax.files import write_whole
from fusion_jax.startup import one_line_errors, start_logging

# Where the plain models and the schemes of a comparison are.
_PHASES: dict[str, tuple[Phase, ...]] = {
  'scratch': ('plain', 'scratch'),
  'continued': ('continued',),
}
# Subwords of the longest line that is scored.
_LONGEST = 256
# The name of the training text, and its lines that are scored.
_TRAINING, _TRAINING_LINES = 'training', 1_000


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


def joined(parts: Sequence[Losses]) -> Losses:
  """Return the losses of several texts as those of one."""
  return Losses(*map(np.concatenate, zip(*parts, strict=True)))


def save_losses(path: Path, texts: Mapping[str, Losses]) -> None:
  """Write the losses of several texts."""
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
  """Read what `save_losses` has written."""
  try:
    with np.load(io.BytesIO(path.read_bytes())) as arrays:
      names = dict.fromkeys(name.rpartition('/')[0] for name in arrays)
      return {
        name: Losses(*(arrays[f'{name}/{field}'] for field in Losses._fields))
        for name in names
      }
  except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
    raise InputError(f'{path}: not the losses of a run: {error}') from None


def compare(
  system: Mapping[str, Losses], baseline: Mapping[str, Losses]
) -> dict[str, Difference]:
  """Return the differences of each text, and of `all` but the training text."""
  texts = {name: difference(system[name], baseline[name]) for name in baseline}
  unseen = [name for name in baseline if name != _TRAINING]
  both = (
    joined([texts[name] for name in unseen]) for texts in (system, baseline)
  )
  return texts | {'all': difference(*both)}


def losses(
  model: fusion_jax.TranslationModel,
  sources: Sequence[str],
  references: Sequence[str],
) -> Losses:
  """Score the references of a text."""
  scored = model.score(sources, references, max_source_length=_LONGEST)
  return Losses(
    np.array([-math.fsum(line.tokens) for line in scored], np.float32),
    np.array([len(line.tokens) for line in scored], np.int32),
  )


@one_line_errors
def main(argv: list[str]) -> None:
  parser = common.make_parser(__doc__, common.RESULTS / 'paired_losses.json')
  add = parser.add_argument
  add('--data', type=Path, required=True, help='Multi30k, or all corpora')
  add('--workdir', type=Path, required=True, help='of compare_fusions')
  add('--corpus', default='multi30k_mlrf', help='a corpus of the recipe')
  add('--norm', default='pre', choices=NORMS)
  add('--phase', default='scratch', choices=tuple(_PHASES))
  add('--results', type=Path, default=common.RESULTS / 'comparison')
  arguments = parser.parse_args(argv)
  start_logging()
  scored = _scored(arguments)
  differences = paired(scored)
  results = {
    'corpus': arguments.corpus,
    'losses': {
      run.name: {name: text.mean for name, text in texts.items()}
      for run, texts in scored.items()
    },
    'differences': {
      run.name: {name: text._asdict() for name, text in texts.items()}
      for run, texts in differences.items()
    },
  }
  common.write_results(arguments.output, common.circumstances() | results)
  print(rendered(differences))


def paired(
  scored: Mapping[Run, Mapping[str, Losses]],
) -> dict[Run, dict[str, Difference]]:
  """Compare each run with the plain model of its seed, or of the first seed."""
  plain = {run.seed: texts for run, texts in scored.items() if _is_plain(run)}
  result = {}
  for run, texts in scored.items():
    seed = next(iter(plain)) if _is_plain(run) and plain else run.seed
    if seed not in plain:
      phase = 'continued' if run.phase == 'continued' else 'plain'
      raise InputError(
        f'--workdir: {run.name} has no plain model of its seed with '
        'checkpoints or saved losses; train one with '
        f'--phases={phase} --keep={phase}'
      )
    if texts is not plain[seed]:
      result[run] = compare(texts, plain[seed])
  if not result:
    raise InputError(
      '--workdir: no two runs with checkpoints or saved losses; train '
      'some with '
      '--keep=plain,continued,scratch'
    )
  return result


def rendered(differences: Mapping[Run, Mapping[str, Difference]]) -> str:
  """Return a table with a row for each run."""
  names = next(iter(differences.values()))
  rows = [
    (
      f'`{run.scheme}`',
      str(run.seed),
      *(f'{signed(one.nats, 3)} ± {one.error:.3f}' for one in texts.values()),
      p_value(texts['all'].p),
    )
    for run, texts in differences.items()
  ]
  return common.table(('scheme', 'seed', *names, 'p'), rows)


def _scored(arguments: argparse.Namespace) -> dict[Run, dict[str, Losses]]:
  """The losses of all finished runs on each text."""
  recipe = read(RECIPE, arguments.corpus)
  folders = Folders.of(arguments.data, arguments.workdir, recipe)
  results = arguments.results / recipe.corpus
  texts = _texts(recipe, folders)
  runs = _runs(recipe, arguments.norm, arguments.phase)
  saved = {run: results / f'{run.name}.losses.npz' for run in runs}
  trained = [
    run
    for run in runs
    if _is_finished(folders.run(run), recipe.phases[run.phase])
  ]
  for number, run in enumerate(trained, start=1):
    common.log(f'{run.name}, {number} of {len(trained)}')
    model = fusion_jax.load(
      folders.run(run), step='last', average=recipe.average
    )
    scored = {name: losses(model, *text) for name, text in texts.items()}
    save_losses(saved[run], scored)
  there = [run for run in runs if saved[run].is_file()]
  seeds = {run.seed for run in there if _is_plain(run)}
  # A run of another machine may be there without its plain model.
  return {
    run: read_losses(saved[run])
    for run in there
    if run in trained or run.seed in seeds
  }


def _texts(
  recipe: Recipe, folders: Folders
) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
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


def _runs(recipe: Recipe, norm: str, phase: str) -> list[Run]:
  """The runs from scratch or the continued ones, scheme by scheme."""
  known = Contestants(recipe.phases['plain'])
  chosen = Chosen(_PHASES[phase], (norm,), recipe.seeds)
  runs = plan(recipe, list(map(known.entry, known.names)), chosen)
  return sorted(
    (run for run in runs if run in chosen),
    key=lambda run: known.names.index(run.scheme),
  )


def _is_finished(workdir: Path, config: ExperimentConfig) -> bool:
  return (workdir / 'checkpoints' / str(config.training.steps)).is_dir()


def _is_plain(run: Run) -> bool:
  return run.scheme == BASELINE


if __name__ == '__main__':
  main(sys.argv[1:])
