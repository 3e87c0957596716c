"""What defines a comparison: a TOML file, resolved for one corpus.

See recipe.toml for what stands in it. A scheme from scratch has the fields of
the plain model. The digest of a recipe for one norm is the SHA-256 of all that
alters a run of that norm: the fields of each phase that are not the defaults of
`ExperimentConfig`, the rates that are tried, the tests and the average.
"""

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks import common
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config
from fusion_jax.config.presets import Row, changed
from fusion_jax.config.serialization import from_dict, to_dict
from fusion_jax.errors import InputError

RECIPE = Path(__file__).with_name('recipe.toml')

Phase = Literal['plain', 'tuning', 'continued', 'scratch']
PHASES: tuple[Phase, ...] = get_args(Phase)
NORMS = 'pre', 'post'
_SECTIONS = (
  *('config', 'tests', 'average', 'runs', 'tuning'),
  *('fields', 'norms', 'phases', 'corpora'),
)


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A recipe of one corpus, whose fields change a named config.

  `tests` are paths in the folder of the data, with {lang} and *. The mean of
  `average` checkpoints translates. The runs of `tuning_seed` choose a fusion's
  rate. `by_norm` is what a norm changes in the config of every phase.
  """

  corpus: str
  config: str
  tests: tuple[str, ...]
  average: int
  norms: tuple[str, ...]
  seeds: tuple[int, ...]
  tuning_seed: int
  rates: tuple[float, ...]
  phases: Mapping[Phase, ExperimentConfig]
  by_norm: Mapping[str, Row]

  def phase(self, phase: Phase, norm: str) -> ExperimentConfig:
    return changed(self.phases[phase], self.by_norm.get(norm, {}))

  def digests(self) -> dict[str, str]:
    """The digest of the runs of each norm, also of those not asked for."""
    return {norm: self.digest(norm) for norm in NORMS}

  def digest(self, norm: str) -> str:
    """SHA-256 of what alters a run of a norm, in hexadecimal digits."""
    resolved = {
      'tests': self.tests,
      'average': self.average,
      'tuning': [self.tuning_seed, self.rates],
      'phases': {
        phase: common.changes(self.phase(phase, norm), ExperimentConfig())
        for phase in self.phases
      },
    }
    text = json.dumps(resolved, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path, corpus: str) -> Recipe:
  table = _load(path)
  table = merged(table, _corpus(path, table.pop('corpora', {}), corpus))
  try:
    return _recipe(corpus, table)
  except (KeyError, InputError) as error:
    lacks = f'it lacks {error}' if isinstance(error, KeyError) else error
    raise InputError(f'--recipe: {path}: {lacks}') from None


def merged(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
  """Nested tables with the entries of another over them."""
  result = dict(table)
  for name, value in over.items():
    below = result.get(name)
    both = isinstance(value, Mapping) and isinstance(below, Mapping)
    result[name] = merged(below, value) if both else value
  return result


def _load(path: Path) -> dict[str, Any]:
  try:
    table = tomllib.loads(path.read_text(encoding='utf-8'))
  except (OSError, ValueError) as error:
    raise InputError(f'--recipe: {path}: not readable: {error}') from None
  unknown = [name for name in table if name not in _SECTIONS]
  if unknown:
    raise InputError(
      f'--recipe: {path}: no section {unknown[0]!r} is known; there are '
      f'{", ".join(_SECTIONS)}'
    )
  return table


def _corpus(
  path: Path,
  corpora: Mapping[str, Mapping[str, Any]],
  name: str,
  asked_by: str = '--corpus',
) -> dict[str, Any]:
  """What a corpus changes, over what the one changes that it is like."""
  if name not in corpora:
    raise InputError(
      f'{asked_by}: {path} has no corpus {name!r}; it has {", ".join(corpora)}'
    )
  others = dict(corpora)
  changes = dict(others.pop(name))
  like = changes.pop('like', None)
  if like is None:
    return changes
  return merged(_corpus(path, others, like, f'corpora.{name}.like'), changes)


def _recipe(corpus: str, table: Mapping[str, Any]) -> Recipe:
  phases = dict(table['phases'])
  phases['scratch'] = phases['plain']
  phases['tuning'] = merged(phases['continued'], phases['tuning'])
  base = to_dict(load_config(table['config']))
  base = merged(base, table['fields'])
  norms = table.get('norms', {})
  for norm, row in norms.items():
    _check_norm(f'norms.{norm}', norm)
    from_dict(merged(base, row))
  for norm in table['runs']['norms']:
    _check_norm('runs.norms', norm)
  return Recipe(
    corpus,
    table['config'],
    tuple(table['tests']),
    table['average'],
    tuple(table['runs']['norms']),
    tuple(table['runs']['seeds']),
    table['tuning']['seed'],
    tuple(table['tuning']['rates']),
    {phase: from_dict(merged(base, phases[phase])) for phase in PHASES},
    {norm: _dotted(row) for norm, row in norms.items()},
  )


def _check_norm(where: str, norm: str) -> None:
  if norm not in NORMS:
    raise InputError(f'{where}: must be {" or ".join(NORMS)}, got {norm!r}')


def _dotted(table: Mapping[str, Any], prefix: str = '') -> Row:
  """Nested tables as one of dotted names."""
  row = {}
  for name, value in table.items():
    if isinstance(value, Mapping):
      row |= _dotted(value, f'{prefix}{name}.')
    else:
      row[prefix + name] = value
  return row
