"""Which runs there are, what each of them needs, and the config of each.

Sizes are those of shapes: nothing is allocated or run.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.comparison.recipe import NORMS, Phase, Recipe
from benchmarks.schemes import BASELINE, ONLY_FROM_SCRATCH, norms_of, schemes
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.config.presets import Row, changed
from fusion_jax.tools.model_sizes import parameter_rows

# The plain model with as many parameters as the heaviest scheme.
WIDE = 'wide'
# The filter of the wide model is a multiple of this.
_MULTIPLE = 8


class Run(NamedTuple):
  """A training: of `start` if there is one, at a fusion's `rate` in the tuning.

  The `trials` of the tuning choose the rate of a run that has none.
  """

  phase: Phase
  norm: str
  scheme: str
  seed: int
  rate: float | None = None
  start: 'Run | None' = None
  trials: tuple['Run', ...] = ()

  @property
  def name(self) -> str:
    """PHASE/NORM/SCHEME-SEED; of the tuning SCHEME@RATE."""
    rate = '' if self.rate is None else f'@{self.rate:g}'
    return f'{self.phase}/{self.norm}/{self.scheme}{rate}-{self.seed}'

  @property
  def kind(self) -> str:
    """Of the table in which it is compared with a plain model."""
    return 'continued' if self.phase == 'continued' else 'scratch'

  @property
  def needs(self) -> tuple['Run', ...]:
    """The runs that must be finished before."""
    return (*self.trials, self.start) if self.start else self.trials


class Entry(NamedTuple):
  """What the plan has to know of a contestant.

  The rate of a fusion is chosen if it `is_tuned`. What `has_norm` is a norm
  itself, and trained once, in the place of the first norm.
  """

  name: str
  is_tuned: bool = False
  has_norm: bool = False
  norms: tuple[str, ...] = NORMS

  @property
  def is_plain(self) -> bool:
    """Without a fusion, so that it continues its own run."""
    return self.name in (BASELINE, WIDE)


class Chosen(NamedTuple):
  phases: Sequence[str]
  norms: Sequence[str]
  seeds: Sequence[int]

  def has(self, run: Run) -> bool:
    chosen_norm = run.phase in self.phases and run.norm in self.norms
    return chosen_norm and run.seed in self.seeds


def plan(recipe: Recipe, entries: Sequence[Entry], chosen: Chosen) -> list[Run]:
  """The runs that are chosen and all that they need, in order.

  Seed by seed, first that of the tuning: for each norm the plain model, its
  continuation, tuning and continuation of every scheme; then all schemes from
  scratch.
  """
  every = [
    run
    for seed in dict.fromkeys((recipe.tuning_seed, *chosen.seeds))
    for run in _of_seed(recipe, entries, seed)
  ]
  wanted: set[Run] = set()
  left = [run for run in every if chosen.has(run)]
  while left:
    run = left.pop()
    wanted.add(run)
    left += run.needs
  return [run for run in every if run in wanted]


def _of_seed(
  recipe: Recipe, entries: Sequence[Entry], seed: int
) -> Iterator[Run]:
  pairs = [
    (norm, entry)
    for norm in recipe.norms
    for entry in entries
    if norm in entry.norms
  ]
  for norm, entry in pairs:
    if entry.name not in ONLY_FROM_SCRATCH:
      yield from _continued(recipe, entry, norm, seed)
  for norm, entry in pairs:
    once = entry.has_norm and norm != recipe.norms[0]
    if not (entry.is_plain or once):
      yield Run('scratch', norm, entry.name, seed)


def _continued(
  recipe: Recipe, entry: Entry, norm: str, seed: int
) -> Iterator[Run]:
  """A contestant from a trained plain model, and what comes before."""
  name, tuning = entry.name, recipe.tuning_seed
  plain = Run('plain', norm, name if entry.is_plain else BASELINE, seed)
  start = plain._replace(seed=tuning)
  trials = tuple(
    Run('tuning', norm, name, tuning, rate, start)
    for rate in (recipe.rates if entry.is_tuned else ())
  )
  if entry.is_plain:
    yield plain
  if seed == tuning:
    yield from trials
  yield Run('continued', norm, name, seed, start=plain, trials=trials)


class Contestants:
  """The plain model first, every fusion scheme, and a wide plain model last."""

  def __init__(self, plain: ExperimentConfig):
    self._plain = plain
    table = schemes(plain.model.encoder_layers)
    self._rows = {name: scheme.row for name, scheme in table.items()}
    self.names = (*self._rows, WIDE)

  def row(self, name: str) -> Row:
    return self._wide if name == WIDE else self._rows[name]

  def entry(self, name: str) -> Entry:
    row, has_start = self.row(name), name not in ONLY_FROM_SCRATCH
    added = sizes(changed(self._plain, row)).keys() - sizes(self._plain).keys()
    is_tuned = bool(added) and has_start and name not in (BASELINE, WIDE)
    return Entry(name, is_tuned, 'model.norm' in row, norms_of(row))

  @functools.cached_property
  def _wide(self) -> Row:
    """The narrowest filter with which no scheme has more parameters."""
    most = max(count(changed(self._plain, row)) for row in self._rows.values())
    filter_width = self._plain.model.filter
    wider = changed(self._plain, {'model.filter': filter_width + _MULTIPLE})
    least = count(self._plain)
    steps = math.ceil((most - least) / (count(wider) - least))
    return {'model.filter': filter_width + _MULTIPLE * steps}


@functools.cache
def sizes(config: ExperimentConfig) -> Mapping[str, int]:
  """The size of every parameter of a config's model, by its name."""
  return {name: math.prod(shape) for name, shape, _ in parameter_rows(config)}


def count(config: ExperimentConfig) -> int:
  return sum(sizes(config).values())


class Folders(NamedTuple):
  """Of the corpora, of all that is made, and of runs by their norm."""

  data: Path
  work: Path
  runs: Mapping[str, Path]

  @classmethod
  def of(cls, data: Path, work: Path, recipe: Recipe) -> 'Folders':
    """Those of a recipe; another recipe has other run directories."""
    work = work.absolute()
    runs = {
      norm: work / f'{recipe.corpus}-{digest[:12]}'
      for norm, digest in recipe.digests().items()
    }
    return cls(data.absolute(), work, runs)

  def run(self, run: Run) -> Path:
    return self.runs[run.norm] / run.name


def experiment(
  run: Run,
  recipe: Recipe,
  contestants: Contestants,
  folders: Folders,
  rate: float | None,
) -> ExperimentConfig:
  """The config of a run; its fusions start as the model that it starts from."""
  fields = {
    'name': run.name,
    'data.root': str(folders.data),
    'data.prepared': str(folders.work / 'prepared'),
    'model.norm': run.norm,
    'training.seed': run.seed,
  } | contestants.row(run.scheme)
  if rate is not None:
    fields['optimizer.fusion_rate'] = rate
  config = changed(recipe.phase(run.phase, run.norm), fields)
  if run.start is None:
    return config
  start = {'training.init_from': str(folders.run(run.start))}
  return changed(config, start | exact_starts(config))


def exact_starts(config: ExperimentConfig) -> Row:
  """What makes the fusions of a config start as the plain model."""
  return {
    f'model.{side}.start': 'baseline'
    for side in ('encoder', 'decoder')
    if config.model.side(side) != SideConfig()
  }
