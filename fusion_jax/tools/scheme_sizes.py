"""Print the table of fusion schemes: where they plug in and what they cost.

    fusion-jax schemes
    fusion-jax schemes --user_dir=my_scheme.py

Parameters are counted on the model that each paper trained, and compared with
the number that the paper printed. The exit code is 1 if a count differs by more
than the paper's rounding, except in rows that are known to be inconsistent and
give the reason. The cache is the share that decoding keeps for each position
beyond what the baseline caches. Multiply-adds are those of a forward pass that
the baseline has not, in thousands, for one source and one target position of 32
and 32. Schemes that no paper describes are counted in a Transformer Base.
"""

import functools
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import pydantic
from pydantic.dataclasses import dataclass

from fusion_jax import fusion
from fusion_jax.config import PRESETS, ModelConfig, Side, SideConfig
from fusion_jax.config.flags import command_parser, parse_arguments
from fusion_jax.config.presets import changed
from fusion_jax.fusion import SCHEMES, SOURCES
from fusion_jax.fusion.scheme import Scheme
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
  output_logits,
)
from fusion_jax.startup import one_line_errors, run_program
from fusion_jax.tables import add_format_flag, table
from fusion_jax.tools.aot.counts import multiplications

_START = 2
_LENGTH = 32
_PLAIN = SideConfig()
_SIDES: tuple[Side, ...] = ('encoder', 'decoder')
_CHECKED = pydantic.ConfigDict(extra='forbid', strict=True)
_HEADER = (
  *('scheme', 'source', 'plugs in at', 'sides', 'extra parameters', 'all'),
  *('paper', 'agrees', 'extra cache', 'multiply-adds'),
)


@dataclass(frozen=True, config=_CHECKED)
class Printed:
  """Number of parameters that a paper prints; with + those of the fusion."""

  size: Annotated[str, pydantic.Field(pattern=r'^\+?[\d,]+(\.\d+)?[MK]$')]
  origin: str  # Paper and table.

  def agrees(self, fused: int, extra: int) -> bool:
    """Return whether a count is that number within its rounding."""
    number = self.size.strip('+MK').replace(',', '')
    unit = 1e6 if self.size.endswith('M') else 1e3
    decimals = len(number.partition('.')[2])
    count = extra if self.size.startswith('+') else fused
    return abs(count / unit - float(number)) <= 0.5 * 10**-decimals + 1e-9


@dataclass(frozen=True, config=_CHECKED)
class Baseline:
  """Model without fusion: a preset with changes, and its vocabularies."""

  preset: str
  vocabularies: tuple[int, int]
  model: dict[str, Any] = pydantic.Field(default_factory=dict)

  def transformer(self, changes: dict[str, Any]) -> Transformer:
    """Return the model with changes of its configuration, by dotted names."""
    config: ModelConfig = PRESETS[self.preset]
    config = changed(config, self.model | changes)
    return Transformer(config, *self.vocabularies, _START)


@dataclass(frozen=True, config=_CHECKED)
class PaperModel:
  """Model of a paper; see the head of papers.toml."""

  of: str
  name: str
  baseline: str
  both: SideConfig = _PLAIN
  encoder: SideConfig = _PLAIN
  decoder: SideConfig = _PLAIN
  model: dict[str, Any] = pydantic.Field(default_factory=dict)
  printed: Printed | None = None
  inconsistent: str = ''

  @property
  def sides(self) -> dict[Side, SideConfig]:
    """The fusions of the sides that have one."""
    both = dict.fromkeys(_SIDES, self.both)
    sides = both if self.both != _PLAIN else {s: getattr(self, s) for s in both}
    return {name: side for name, side in sides.items() if side != _PLAIN}


@dataclass(frozen=True, config=_CHECKED)
class Group:
  """What models of a paper have in common."""

  source: str  # Paper and equations.
  plug: str  # Where the scheme plugs in.


@dataclass(frozen=True, config=_CHECKED)
class Papers:
  """Content of papers.toml."""

  baselines: dict[str, Baseline]
  groups: dict[str, Group]
  models: list[PaperModel]


class Row(NamedTuple):
  """Row of the table: a model, and the same without the fusion."""

  model: PaperModel
  group: Group
  fused: Transformer
  plain: Transformer


@functools.cache
def _papers() -> Papers:
  text = Path(fusion.__file__).with_name('papers.toml').read_text('utf-8')
  values = json.dumps(tomllib.loads(text))
  return pydantic.TypeAdapter(Papers).validate_json(values)


def rows() -> Iterator[Row]:
  """Yield the rows of the table, with those of schemes of the user's own."""
  papers = _papers()
  groups = {
    name: Group(scheme.source, ', '.join(dict.fromkeys(scheme.plugs.values())))
    for name, scheme in SCHEMES.items()
  }
  for name, row in SOURCES.items():
    groups[name] = Group(row.source, 'attention')
  for name, group in (groups | papers.groups).items():
    models = [model for model in papers.models if model.of == name]
    for model in models or [_in_base(SCHEMES[name])]:
      baseline = papers.baselines[model.baseline]
      changes = {f'{side}': fusion for side, fusion in model.sides.items()}
      fused = baseline.transformer(model.model | changes)
      yield Row(model, group, fused, baseline.transformer({}))


def _in_base(scheme: Scheme) -> PaperModel:
  """Return a scheme without a paper's model at Base size, at its defaults."""
  side = SideConfig(fusion=scheme.name)
  sides: dict[str, Any] = dict.fromkeys(scheme.modules, side)
  baseline = 'base' if 'post' in scheme.norms else 'pre_norm'
  return PaperModel(scheme.name, scheme.name, baseline, **sides)


@functools.cache
def _shapes(model: Transformer) -> Parameters:
  return jax.eval_shape(lambda: initial_parameters(model, 0))


def _count(model: Transformer) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(_shapes(model)))


def parameters(row: Row) -> tuple[int, int]:
  """Count the fused model's parameters, and those that fusion adds."""
  fused = _count(row.fused)
  return fused, fused - _count(row.plain)


@functools.cache
def _cached(model: Transformer) -> int:
  """Count the numbers that decoding keeps per position of one hypothesis."""

  def start(parameters, ids, lengths):
    apply = functools.partial(model.apply, {'params': parameters})
    encoded = apply(ids, lengths, method='encode')
    return apply(encoded, lengths, 1, 1, method='start_decoding')[0]

  cache = jax.eval_shape(
    start,
    _shapes(model),
    jax.ShapeDtypeStruct((1, 2), jnp.int32),
    jax.ShapeDtypeStruct((1,), jnp.int32),
  )
  return sum(leaf.size for leaf in jax.tree.leaves(cache))


def extra_cache(row: Row) -> float:
  """Return the cache beyond the baseline, as a share of the baseline's."""
  return _cached(row.fused) / _cached(row.plain) - 1


@functools.cache
def multiplied(model: Transformer) -> int:
  """Count the multiplications of a pass over one sentence."""
  ids = jax.ShapeDtypeStruct((1, _LENGTH), jnp.int32)
  lengths = jax.ShapeDtypeStruct((1,), jnp.int32)

  def predict(parameters, source, lengths, target):
    output: Any = model.apply({'params': parameters}, source, lengths, target)
    features = output.features.reshape(-1, model.config.width)
    return output_logits(features, output.output), output.log_weights

  traced = jax.jit(predict).trace(_shapes(model), ids, lengths, ids)
  return multiplications(traced.jaxpr)


def extra_multiplications(row: Row) -> float:
  """Return those beyond the baseline, for each source and target position."""
  return (multiplied(row.fused) - multiplied(row.plain)) / _LENGTH


def agrees(row: Row) -> bool:
  """Return whether the paper prints no other number than the count."""
  printed = row.model.printed
  return printed is None or printed.agrees(*parameters(row))


def _cells(row: Row) -> tuple[str, ...]:
  fused, extra = parameters(row)
  cache = extra_cache(row)
  model, group = row.model, row.group
  verdict = 'yes' if agrees(row) else f'no: {model.inconsistent or "WRONG"}'
  return (
    f'`{model.name}`',
    group.source,
    group.plug,
    ', '.join(model.sides) or 'both',
    f'{extra:+,}',
    f'{fused:,}',
    model.printed.size if model.printed else '',
    verdict if model.printed else '',
    'none' if cache == 0 else f'{cache:+.0%}',
    f'{extra_multiplications(row) / 1e3:+,.0f}K',
  )


@one_line_errors
def main(argv: list[str]) -> None:
  """Print the table; raise SystemExit(1) on a wrong count."""
  parser = command_parser(__doc__, 'schemes')
  add_format_flag(parser, default='markdown')
  flags = parse_arguments(argv, parser)
  listed = tuple(rows())
  print(table(flags.format, _HEADER, map(_cells, listed)), flush=True)
  if not all(agrees(row) or row.model.inconsistent for row in listed):
    raise SystemExit(1)


if __name__ == '__main__':
  run_program(main)
