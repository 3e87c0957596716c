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

import argparse
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fusion_jax.config import SideConfig
from fusion_jax.config.flags import parse_arguments
from fusion_jax.config.fusion import RULES
from fusion_jax.config.section import fields_of_section
from fusion_jax.fusion import (
  SCHEMES,
  deep_residuals,
  multi_layer,
  shortcuts,
  skip_gains,
  value_residual,
)
from fusion_jax.fusion.scheme import (
  BASE,
  PLAIN,
  PRE_NORM,
  Baseline,
  PaperSize,
  Scheme,
)
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
  output_logits,
)
from fusion_jax.startup import one_line_errors, run_program
from fusion_jax.tables import add_format_flag, table
from fusion_jax.tools.aot.matmul_flops import multiplications

_START = 2
_LENGTH = 32


class Row(NamedTuple):
  """Row of the table.

  Attributes:
    size: A paper's model and its printed size.
    source: Paper and equations.
    plug: Where the scheme plugs in.
    options: Field of the config that holds its options.
    plain: Model to compare with.
  """

  size: PaperSize
  source: str
  plug: str
  options: str
  plain: Baseline


def _row(size: PaperSize, source: str, plug: str, options: str) -> Row:
  return Row(size, source, plug, options, size.baseline)


def _unprinted(scheme: Scheme) -> PaperSize:
  """Return a scheme without a paper's model at Base size, at its defaults."""
  fused = SideConfig(fusion=scheme.name)
  encoder, decoder = (
    fused if side in scheme.modules else PLAIN
    for side in ('encoder', 'decoder')
  )
  baseline = BASE if 'post' in RULES[scheme.name].norms else PRE_NORM
  return PaperSize(scheme.name, encoder, decoder, None, baseline)


def rows() -> Iterator[Row]:
  """Yield the rows of the table, with those of schemes of the user's own."""
  for scheme in SCHEMES.values():
    plug = ', '.join(dict.fromkeys(scheme.plugs.values()))
    options = scheme.options
    if scheme.own is not None:
      options = f'own: {", ".join(fields_of_section(scheme.own))}'
    for size in scheme.sizes or (_unprinted(scheme),):
      yield _row(size, scheme.source, plug, options)
  for size in multi_layer.SIZES:
    yield _row(size, multi_layer.SOURCE, 'attention', 'multi_layer, agg')
  for size in shortcuts.SIZES:
    yield _row(size, shortcuts.SOURCE, 'attention', 'shortcut')
  for size in value_residual.SIZES:
    yield _row(size, value_residual.SOURCE, 'attention', 'value_residual')
  for size in skip_gains.SIZES:
    yield _row(size, skip_gains.SOURCE, 'residual', 'skip_gains')
  rezero = BASE._replace(model=dataclasses.replace(BASE.model, norm='rezero'))
  yield Row(
    PaperSize('norm=rezero', PLAIN, PLAIN, None, rezero),
    'Bachlechner et al. 2020, Eq. 1',
    'residual',
    'model.norm',
    BASE,
  )
  for name, source in deep_residuals.SOURCES.items():
    model = dataclasses.replace(BASE.model, residual=name)
    size = PaperSize(
      f'residual={name}', PLAIN, PLAIN, None, BASE._replace(model=model)
    )
    yield Row(size, source, 'residual', 'model.residual', BASE)


def _model(
  baseline: Baseline, encoder: SideConfig, decoder: SideConfig
) -> Transformer:
  config = dataclasses.replace(baseline.model, encoder=encoder, decoder=decoder)
  return Transformer(config, baseline.source, baseline.target, _START)


def _fused(size: PaperSize) -> Transformer:
  return _model(size.baseline, size.encoder, size.decoder)


@functools.cache
def _shapes(model: Transformer) -> Parameters:
  return jax.eval_shape(lambda: initial_parameters(model, 0))


def _count(model: Transformer) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(_shapes(model)))


def parameters(row: Row) -> tuple[int, int]:
  """Count the fused model's parameters, and those that fusion adds."""
  fused = _count(_fused(row.size))
  return fused, fused - _count(_model(row.plain, PLAIN, PLAIN))


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
  plain = _cached(_model(row.plain, PLAIN, PLAIN))
  return _cached(_fused(row.size)) / plain - 1


@functools.cache
def _multiplied(model: Transformer) -> int:
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
  plain = _multiplied(_model(row.plain, PLAIN, PLAIN))
  return (_multiplied(_fused(row.size)) - plain) / _LENGTH


def agrees(row: Row) -> bool:
  """Return whether the count equals the paper's number within its rounding."""
  printed = row.size.printed
  if printed is None:
    return True
  count = parameters(row)[0 if printed.of == 'all' else 1]
  difference = abs(count / printed.unit - printed.value)
  return difference <= 0.5 * 10**-printed.decimals + 1e-9


def _printed(size: PaperSize) -> str:
  if size.printed is None:
    return ''
  value, unit, decimals, of = size.printed
  letter = 'M' if unit == 1e6 else 'K'
  sign = '+' if of == 'extra' else ''
  return f'{sign}{value:,.{decimals}f}{letter}'


def _sides(size: PaperSize) -> str:
  return ', '.join(
    name
    for name, side in (('encoder', size.encoder), ('decoder', size.decoder))
    if side != PLAIN
  )


def _cells(row: Row) -> tuple[str, ...]:
  fused, extra = parameters(row)
  cache = extra_cache(row)
  size = row.size
  verdict = 'yes' if agrees(row) else f'no: {size.inconsistent or "WRONG"}'
  return (
    f'`{size.name}`',
    row.source,
    row.plug,
    _sides(size) or 'both',
    f'`{row.options}`',
    f'{extra:+,}',
    f'{fused:,}',
    _printed(size),
    verdict if size.printed else '',
    'none' if cache == 0 else f'{cache:+.0%}',
    f'{extra_multiplications(row) / 1e3:+,.0f}K',
  )


@one_line_errors
def main(argv: list[str]) -> None:
  """Print the table; raise SystemExit(1) on a wrong count."""
  parser = argparse.ArgumentParser(
    prog='fusion-jax schemes',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add_format_flag(parser, default='markdown')
  arguments = parse_arguments(argv, parser)
  header = ['scheme', 'source', 'plugs in at', 'sides', 'options']
  header += (
    'extra parameters',
    'all',
    'paper',
    'agrees',
    'extra cache',
    'multiply-adds',
  )
  found = tuple(rows())
  print(table(arguments.format, header, map(_cells, found)), flush=True)
  if not all(agrees(row) or row.size.inconsistent for row in found):
    raise SystemExit(1)


if __name__ == '__main__':
  run_program(main)
