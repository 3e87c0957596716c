"""A study file, and the runs that it asks for.

    config = "multi30k:en-de"       # every contestant changes this config
    seeds = [0, 1, 2]
    tests = ["test_2016_flickr.{lang}.gz"]

    [fields]                        # of all contestants
    data.root = "multi30k"

    [contestants.plain]

    [contestants.wide]              # as many parameters as hierarchical
    match = { parameters = "hierarchical" }

    [contestants.hierarchical]
    start = "plain"
    choose = { "optimizer.fusion_rate" = [0.1, 1.0] }
    fields.model.encoder.fusion = "hierarchical"

A file that is `like` another has what that has, but for what it says itself;
it may `take` some of the other's contestants only.

Nothing here trains: sizes and operations are those of shapes.
"""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pydantic
from pydantic import Field

from fusion_jax.bounds import Positive
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config, run_user_dir
from fusion_jax.config.fusion import SIDES, SideConfig
from fusion_jax.config.presets import Row, changed
from fusion_jax.config.serialization import flatten
from fusion_jax.data import corpora
from fusion_jax.errors import InputError
from fusion_jax.files import as_type

# What a plain model may have in common with another contestant.
Equal = Literal['parameters', 'operations', 'updates', 'seconds']
# Updates of the run that tells how long the others take.
_TIMED = 40
# Where a run is trained and how it is named; nothing that alters it.
_PLACES = 'name', 'data.root', 'data.prepared', 'training.init_from'


@dataclasses.dataclass(frozen=True)
class Contestant:
  """A contestant of a study file.

  Attributes:
    start: Contestant or run directory whose parameters it starts from; '': it
      is trained from scratch. None: the study's.
    match: What a plain model shall have as much of as which contestant.
    choose: Values of fields, of which short runs choose the best by the
      validation loss. None: the study's.
  """

  __pydantic_config__ = pydantic.ConfigDict(extra='forbid')

  fields: dict[str, Any] = dataclasses.field(default_factory=dict)
  start: str | None = None
  match: dict[Equal, str] = dataclasses.field(default_factory=dict)
  choose: dict[str, list[Any]] | None = None


@dataclasses.dataclass(frozen=True)
class StudyFile:
  """The content of a study file; see the module.

  Attributes:
    contestants: By name; the first is the baseline.
    tests: Corpora to translate, as in `data.test`.
    fields: What all contestants change in the config.
    start, choose: Of the contestants that say nothing else, and that no other
      starts from.
    average: Number of last checkpoints whose mean translates.
    choice_steps: Updates of the runs that choose.
    keep_checkpoints: Whether finished runs that no other starts from keep them.
    comet: COMET model that scores too; '': none.
    user_dir: Code of schemes of your own.
  """

  __pydantic_config__ = pydantic.ConfigDict(extra='forbid')

  config: str
  contestants: Annotated[dict[str, Contestant], Field(min_length=1)]
  seeds: Annotated[list[int], Field(min_length=1)] = dataclasses.field(
    default_factory=lambda: [0]
  )
  tests: list[str] = dataclasses.field(default_factory=list)
  fields: dict[str, Any] = dataclasses.field(default_factory=dict)
  start: str = ''
  choose: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
  average: Positive = 1
  choice_steps: Positive = 200
  keep_checkpoints: bool = True
  comet: str = ''
  user_dir: str = ''


class Run(NamedTuple):
  """A training of a study.

  Attributes:
    config: Config, but for what the runs that it needs decide.
    digest: SHA-256 of all that alters it.
    start: Run that it starts from.
    trials: Short runs that choose its fields, each with its choice.
    timed: Runs whose seconds an update decide its number of updates: its own
      config's, and the one that it shall be as long as.
    choice: Fields that a trial tries; empty for other runs.
    origin: Run directory from elsewhere that it starts from; '': none.
  """

  contestant: str
  config: ExperimentConfig
  digest: str
  start: 'Run | None' = None
  trials: tuple['Run', ...] = ()
  timed: tuple['Run', ...] = ()
  choice: tuple[tuple[str, Any], ...] = ()
  origin: str = ''

  @property
  def seed(self) -> int:
    return self.config.training.seed

  @property
  def name(self) -> str:
    """Its folder: CONTESTANT/SEED-DIGEST, of a trial with `trial-`."""
    kind = 'trial-' if self.choice else ''
    return f'{self.contestant}/{kind}{self.seed}-{self.digest[:8]}'

  @property
  def needs(self) -> tuple['Run', ...]:
    """The runs that must be finished before."""
    start = (self.start,) if self.start else ()
    return (*self.trials, *start, *self.timed)


class Study(NamedTuple):
  """A study file with its runs; each is behind those that it needs.

  The run `timing` is a few updates of the baseline, which tell how long all
  take.
  """

  path: Path
  file: StudyFile
  runs: tuple[Run, ...]
  tests: tuple[str, ...]
  timing: Run

  @property
  def baseline(self) -> str:
    return next(iter(self.file.contestants))


def read(path: Path) -> Study:
  """Read a study file and check every config that it makes."""
  file = as_type(_table(path, ()), StudyFile, str(path))
  if file.user_dir:
    run_user_dir(str(path.parent / file.user_dir))
  try:
    return _Planner(path, file).study()
  except InputError as error:
    raise InputError(f'{path}: {error}') from None


def _table(path: Path, readers: Sequence[Path]) -> dict[str, Any]:
  """Read a file over the one that it is like."""
  if path in readers:
    raise InputError(f'{path}: it is like itself')
  try:
    table = tomllib.loads(path.read_text(encoding='utf-8'))
  except OSError as error:
    raise InputError(f'{path}: cannot be read ({error.strerror})') from None
  except ValueError as error:
    raise InputError(f'{path}: not TOML: {error}') from None
  like, taken = (table.pop(name, None) for name in ('like', 'take'))
  if like is None:
    return table
  below = _table(path.parent / str(like), (*readers, path))
  contestants = below.get('contestants')
  if taken is not None and isinstance(contestants, dict):
    for name in as_type(taken, list[str], f'{path}: take'):
      if name not in contestants:
        raise InputError(f'{path}: take: {like} has no contestant {name!r}')
    below['contestants'] = {name: contestants[name] for name in taken}
  return _merged(below, table)


def _merged(below: Mapping[str, Any], over: Mapping[str, Any]) -> Row:
  """Return nested tables with the entries of another over them."""
  result = dict(below)
  for name, value in over.items():
    before = result.get(name)
    if isinstance(value, Mapping) and isinstance(before, Mapping):
      value = _merged(before, value)
    result[name] = value
  return result


class _Planner:
  """Makes the runs of a study file."""

  def __init__(self, path: Path, file: StudyFile):
    self._path, self._file = path, file
    self._base = changed(load_config(file.config), _dotted(file.fields))
    self._tests = tuple(file.tests) or self._base.data.test

  def study(self) -> Study:
    """Return the study; every contestant is checked."""
    for test in self._tests:
      corpora.check_files(test, self._base.data, 'data.test')
    every = itertools.product(self._file.seeds, self._file.contestants)
    runs = dict.fromkeys(
      run for seed, name in every for run in with_needs(self.run(name, seed))
    )
    timing = self._timing()
    return Study(self._path, self._file, tuple(runs), self._tests, timing)

  @functools.cache  # noqa: B019
  def run(self, name: str, seed: int) -> Run:
    """Return the run of a contestant and a seed."""
    contestant = self._contestant(name)
    config = changed(self.config(name), {'name': name, 'training.seed': seed})
    _check_average(self._file.average, config)
    start, origin = self._start(contestant, seed)
    trials = tuple(self._trials(name, config, contestant))
    timed: tuple[Run, ...] = ()
    if like := contestant.match.get('seconds'):
      plain = next(iter(self._file.contestants))
      timed = self.run(plain, seed), self.run(like, seed)
    altered = [self._file.average, self._tests, contestant.start]
    parts = (*trials, *timed, *((start,) if start else ()))
    digest = _digest(config, altered + [part.digest for part in parts])
    return Run(name, config, digest, start, trials, timed, origin=origin)

  @functools.cache  # noqa: B019
  def config(self, name: str) -> ExperimentConfig:
    """Return the config of a contestant, which fits what it matches."""
    contestant = self._contestant(name)
    try:
      config = changed(self._base, _dotted(contestant.fields))
      if contestant.start:
        config = changed(config, as_the_plain_model(config))
    except InputError as error:
      raise InputError(f'contestants.{name}: {error}') from None
    for equal, like in contestant.match.items():
      if like == name or self._contestant(like).match:
        raise InputError(
          f'contestants.{name}.match.{equal}: {like!r} must be a contestant '
          'that matches nothing itself'
        )
      if equal != 'seconds':
        config = matched(config, self.config(like), equal)
    return config

  def _timing(self) -> Run:
    name, seed = next(iter(self._file.contestants)), self._file.seeds[0]
    # A warm-up may be longer, and no schedule alters the time of an update.
    rate = {'optimizer.schedule': 'constant'}
    config = changed(self.config(name), _short(seed, _TIMED) | rate)
    choice = (('training.steps', _TIMED),)
    return Run(name, config, _digest(config, ()), choice=choice)

  def _contestant(self, name: str) -> Contestant:
    if name not in self._file.contestants:
      known = ', '.join(self._file.contestants)
      raise InputError(f'no contestant {name!r}; there are {known}')
    contestant = self._file.contestants[name]
    start, choose = self._file.start, self._file.choose
    others = {other.start for other in self._file.contestants.values()}
    if name in (start, *others):
      start, choose = '', {}
    if contestant.start is not None:
      start = contestant.start
    if contestant.choose is not None:
      choose = contestant.choose
    return dataclasses.replace(contestant, start=start, choose=choose)

  def _start(self, contestant: Contestant, seed: int) -> tuple[Run | None, str]:
    """Return the run of the study that it starts from, or a run directory."""
    start = before = contestant.start or ''
    while before in self._file.contestants:
      before = self._contestant(before).start or ''
      if before == start:
        raise InputError(f'start: {start!r} would start from itself')
    if start in self._file.contestants:
      return self.run(start, seed), ''
    if start and not Path(start, 'config.json').is_file():
      raise InputError(
        f'start: {start!r} is no contestant and no run directory'
      )
    return None, start

  def _trials(
    self, name: str, config: ExperimentConfig, contestant: Contestant
  ) -> Iterator[Run]:
    """Yield a short run of the first seed for each choice."""
    if not contestant.choose:
      return
    seed = self._file.seeds[0]
    short = _short(seed, self._file.choice_steps)
    start, origin = self._start(contestant, seed)
    for values in itertools.product(*contestant.choose.values()):
      choice = tuple(zip(contestant.choose, values, strict=True))
      try:
        tried = changed(config, short | dict(choice))
      except InputError as error:
        raise InputError(f'contestants.{name}.choose: {error}') from None
      altered = [contestant.start, start.digest if start else '']
      digest = _digest(tried, altered)
      yield Run(name, tried, digest, start, choice=choice, origin=origin)


def _check_average(average: int, config: ExperimentConfig) -> None:
  """Refuse a mean of more checkpoints than a run keeps."""
  training = config.training
  save, validate = training.save_every, training.validate_every
  before = training.steps - 1  # The last update is always saved.
  both = before // math.lcm(save, validate)
  saved = before // save + before // validate - both + 1
  kept = min(saved, training.keep_last)
  if average > kept:
    raise InputError(
      f'average: must be at most {kept}, the checkpoints that {config.name} '
      f'keeps by training.steps, save_every and keep_last, got {average}'
    )


def _short(seed: int, steps: int) -> Row:
  """Return the fields of a short run, which logs its speed after the start."""
  every = 'training.steps', 'training.validate_every', 'training.save_every'
  speed = {'training.seed': seed, 'training.log_every': max(1, steps // 2)}
  return speed | dict.fromkeys(every, steps)


def with_needs(run: Run) -> Iterator[Run]:
  """Yield a run behind those that it needs."""
  for needed in run.needs:
    yield from with_needs(needed)
  yield run


def _dotted(table: Mapping[str, Any], prefix: str = '') -> Row:
  """Return nested tables as one of dotted names."""
  row: Row = {}
  for name, value in table.items():
    if isinstance(value, Mapping):
      row |= _dotted(value, f'{prefix}{name}.')
    else:
      value = tuple(value) if isinstance(value, list) else value
      row[prefix + name] = value
  return row


def as_the_plain_model(config: ExperimentConfig) -> Row:
  """Return what makes fusions start as the model that they start from."""
  return {
    f'model.{side}.start': 'baseline'
    for side in SIDES
    if config.model.side(side) != SideConfig()
  }


def _digest(config: ExperimentConfig, others: Sequence[Any]) -> str:
  every = flatten(config).items()
  fields = {name: value for name, value in every if name not in _PLACES}
  text = json.dumps([fields, others], sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def parameters(config: ExperimentConfig) -> int:
  """Count the parameters of a config's model."""
  from fusion_jax.tools.model_sizes import parameter_rows

  return sum(math.prod(shape) for _, shape, _ in parameter_rows(config))


@functools.cache
def operations(config: ExperimentConfig) -> int:
  """Count the multiply-adds of a pass over one pair of 32 + 32 subwords."""
  from fusion_jax.models.transformer import Transformer
  from fusion_jax.tools.scheme_sizes import multiplied

  size = config.data.tokenizer.vocabulary_size
  return multiplied(Transformer(config.model, size, size, start_id=2))


_SIZES: Mapping[str, Callable[[ExperimentConfig], int]] = {
  'parameters': parameters,
  'operations': operations,
}


def matched(
  config: ExperimentConfig, like: ExperimentConfig, equal: Equal
) -> ExperimentConfig:
  """Return a plain model that has as much of something as another one.

  Parameters and operations are linear in the width of the filter; operations
  times updates are those of the other training.
  """
  if equal == 'updates':
    ratio = operations(like) / operations(config)
    steps = round(like.training.steps * ratio)
    return changed(config, {'training.steps': steps})
  count = _SIZES[equal]
  first = config.model.filter
  wider = changed(config, {'model.filter': first + 1})
  slope = count(wider) - count(config)
  width = first + round((count(like) - count(config)) / slope)
  if width < 1:
    raise InputError(f'match.{equal}: no width of the filter is narrow enough')
  return changed(config, {'model.filter': width})


def deviations(study: Study, name: str) -> dict[str, float]:
  """Return how far a contestant is from what it matches, as a share."""
  configs = {run.contestant: run.config for run in study.runs}
  return {
    equal: _SIZES[equal](configs[name]) / _SIZES[equal](configs[like]) - 1
    for equal, like in study.file.contestants[name].match.items()
    if equal in _SIZES
  }
