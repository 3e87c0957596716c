"""The config that a run is trained with, and the flags that train.py needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.comparison.contestants import Contestants
from benchmarks.comparison.plan import Run
from benchmarks.comparison.recipe import Recipe
from benchmarks.serving import ROOT
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config
from fusion_jax.config.fusion import SideConfig
from fusion_jax.config.presets import changed
from fusion_jax.config.serialization import flatten

_PLACES = ('name', 'data.root', 'data.prepared', 'training.init_from')


class Folders(NamedTuple):
  """Where runs and texts are.

  data: the folder of the corpora.
  work: prepared corpora, test sets and run directories.
  texts: test sets of the corpus.
  runs: run directories of the recipe, by norm.
  """

  data: Path
  work: Path
  texts: Path
  runs: Mapping[str, Path]

  @classmethod
  def of(cls, data: Path, work: Path, recipe: Recipe) -> 'Folders':
    """Those of a recipe; another recipe has other run directories."""
    work = work.absolute()
    runs = {
      norm: work / f'{recipe.corpus}-{digest[:12]}'
      for norm, digest in recipe.digests().items()
    }
    texts = work / f'{recipe.corpus}-tests'
    return cls(data.absolute(), work, texts, runs)

  def run(self, run: Run) -> Path:
    """The run directory of a run."""
    return self.runs[run.norm] / run.name


class Experiment(NamedTuple):
  """A config, and of every fused stack how its new parameters start."""

  config: ExperimentConfig
  start: dict[str, str]


def experiment(
  run: Run,
  recipe: Recipe,
  contestants: Contestants,
  folders: Folders,
  rate: float | None,
) -> Experiment:
  """The experiment of a run."""
  own = {
    'name': run.name,
    'data.root': str(folders.data),
    'data.prepared': str(folders.work / 'prepared'),
    'model.norm': run.norm,
    'training.seed': run.seed,
  } | contestants.row(run.scheme)
  if rate is not None:
    own['optimizer.fusion_rate'] = rate
  config = changed(recipe.phase(run.phase, run.norm), own)
  if run.start is None:
    return Experiment(config, {})
  baseline = {'training.init_from': str(folders.run(run.start))}
  return _started(changed(config, baseline))


def overrides(config: ExperimentConfig, recipe: Recipe) -> dict[str, Any]:
  """The fields in which a config differs from the recipe's config file."""
  return _difference(config, load_config(f'{ROOT}/{recipe.config}'))


def changes(config: ExperimentConfig, of: ExperimentConfig) -> dict[str, Any]:
  """What a run changes in the config of its phase, but for names and paths."""
  found = _difference(config, of)
  return {name: found[name] for name in found if name not in _PLACES}


def _difference(
  config: ExperimentConfig, base: ExperimentConfig
) -> dict[str, Any]:
  before = flatten(base)
  return {
    name: value
    for name, value in flatten(config).items()
    if name not in before or before[name] != value
  }


def _started(config: ExperimentConfig) -> Experiment:
  """With the exact start in every stack that has a fusion."""
  starts = {
    side: 'baseline'
    for side in ('encoder', 'decoder')
    if config.model.side(side) != SideConfig()
  }
  fields = {f'model.{side}.start': start for side, start in starts.items()}
  return Experiment(changed(config, fields), starts)
