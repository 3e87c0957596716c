"""Which runs there are, in which order, and what each of them needs."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.comparison.recipe import NORMS, Phase, Recipe
from benchmarks.schemes import BASELINE


class Run(NamedTuple):
  """A training.

  phase: of the recipe.
  norm: of the model.
  scheme: the contestant.
  seed: of parameters, data and dropout.
  rate: of the fusion, of a run of the tuning.
  start: the run whose parameters it starts from.
  trials: the runs of the tuning that choose its rate.
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
  def needs(self) -> tuple['Run', ...]:
    """The runs that must be finished before."""
    return (*self.trials, self.start) if self.start else self.trials


class Entry(NamedTuple):
  """What the plan has to know of a contestant.

  name: of it.
  is_tuned: whether its fusion's rate is chosen.
  has_norm: whether it is a norm itself; it is trained once then, in the place
    of the first norm.
  only_scratch: whether it cannot start from a plain model.
  is_plain: whether it has no fusion: it then continues its own run.
  norms: for which it is defined.
  """

  name: str
  is_tuned: bool = False
  has_norm: bool = False
  only_scratch: bool = False
  is_plain: bool = False
  norms: tuple[str, ...] = NORMS


@dataclasses.dataclass(frozen=True)
class Chosen:
  """The runs that are asked for."""

  phases: Sequence[str]
  norms: Sequence[str]
  seeds: Sequence[int]

  def __contains__(self, run: Run) -> bool:
    return (
      run.phase in self.phases
      and run.norm in self.norms
      and run.seed in self.seeds
    )


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
  left = [run for run in every if run in chosen]
  while left:
    run = left.pop()
    wanted.add(run)
    left += run.needs
  return [run for run in every if run in wanted]


def _of_seed(
  recipe: Recipe, entries: Sequence[Entry], seed: int
) -> Iterator[Run]:
  for norm in recipe.norms:
    for entry in entries:
      if not entry.only_scratch and norm in entry.norms:
        yield from _continued(recipe, entry, norm, seed)
  for norm in recipe.norms:
    for entry in entries:
      once = entry.has_norm and norm != recipe.norms[0]
      if not (entry.is_plain or once) and norm in entry.norms:
        yield Run('scratch', norm, entry.name, seed)


def _continued(
  recipe: Recipe, entry: Entry, norm: str, seed: int
) -> Iterator[Run]:
  """A contestant from a trained plain model, and what comes before."""
  name = entry.name
  plain = Run('plain', norm, name if entry.is_plain else BASELINE, seed)
  start = plain._replace(seed=recipe.tuning_seed)
  trials = tuple(
    Run('tuning', norm, name, recipe.tuning_seed, rate, start)
    for rate in (recipe.rates if entry.is_tuned else ())
  )
  if entry.is_plain:
    yield plain
  if seed == recipe.tuning_seed:
    yield from trials
  yield Run('continued', norm, name, seed, start=plain, trials=trials)
