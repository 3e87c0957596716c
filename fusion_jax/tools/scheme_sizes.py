"""Prints the table of fusion schemes: where they plug in and what they cost.

    python -m fusion_jax.fusion

Parameters are counted on the model that each paper trained, and compared with
the number it printed. The exit code is 1 when a count leaves the paper's
rounding, except in rows that are known to be inconsistent, which say why.
The cache is what a decoder keeps of a position beyond its keys and values.
"""

import argparse
import dataclasses
import functools
import sys
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fusion_jax.config import PRESETS, ModelConfig
from fusion_jax.config.flags import parse_arguments
from fusion_jax.config.fusion import (
  GtransOptions,
  MlrfOptions,
  MultiLayerOptions,
  RoutingOptions,
  ShortcutOptions,
  SideConfig,
)
from fusion_jax.fusion import SCHEMES
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)
from fusion_jax.startup import one_line_errors

_START = 2


class Baseline(NamedTuple):
  """A paper's model without fusion, and its vocabularies."""

  model: ModelConfig
  source: int
  target: int


class Printed(NamedTuple):
  """A number of a paper.

  value: as printed, in units of `unit` parameters.
  unit: 1e3 or 1e6.
  decimals: that were printed.
  of: the whole model, or what fusion adds to it.
  """

  value: float
  unit: float
  decimals: int
  of: Literal['all', 'extra']


class Row(NamedTuple):
  """A line of the table."""

  name: str
  source: str
  plug: str
  options: str
  baseline: Baseline
  encoder: SideConfig
  decoder: SideConfig
  printed: Printed | None = None
  inconsistent: str = ''


# The sizes of Dou et al. (2018, 2019) do not depend on the vocabulary, which
# they do not print.
_BASE = Baseline(PRESETS['base'], 32_000, 32_000)
_BIG = Baseline(PRESETS['big'], 32_000, 32_000)
_MLRF = Baseline(
  dataclasses.replace(
    PRESETS['small'], tied_embeddings='none', output_bias=True
  ),
  8_389,
  6_428,
)
_SHORTCUT = Baseline(
  dataclasses.replace(PRESETS['base'], norm='pre', attention_bias=False),
  41_138,
  41_138,
)
_SHORTCUT_BIG = _SHORTCUT._replace(
  model=dataclasses.replace(PRESETS['big'], norm='pre', attention_bias=False)
)
# The vocabulary is ours: the one with which the baseline has 68.1M.
_GTRANS = Baseline(
  dataclasses.replace(
    PRESETS['base'], filter=1_024, encoder_layers=12, decoder_layers=12
  ),
  9_800,
  9_800,
)
_NONE = SideConfig()
_PLAIN = MlrfOptions(norm='plain')


def _extra(millions: float, decimals: int = 1) -> Printed:
  return Printed(millions, 1e6, decimals, 'extra')


def _millions(total: float, decimals: int = 2) -> Printed:
  return Printed(total, 1e6, decimals, 'all')


def _thousands(total: float) -> Printed:
  return Printed(total, 1e3, 0, 'all')


def _both(name: str, printed: Printed | None, inconsistent: str = '') -> Row:
  """A scheme with its defaults on every side that it has."""
  scheme = SCHEMES[name]
  side = SideConfig(fusion=name)
  return Row(
    name,
    scheme.source,
    ', '.join(dict.fromkeys(scheme.plug.values())),
    scheme.options,
    _BASE,
    side if 'encoder' in scheme.module else _NONE,
    side if 'decoder' in scheme.module else _NONE,
    printed,
    inconsistent,
  )


def _mlrf_side(scheme: str, options: MlrfOptions) -> SideConfig:
  return _NONE if scheme == 'none' else SideConfig(scheme, mlrf=options)


def _mlrf(
  name: str,
  encoder: str,
  decoder: str,
  printed: float,
  options: MlrfOptions = _PLAIN,
) -> Row:
  schemes = [SCHEMES[each] for each in (encoder, decoder) if each != 'none']
  return Row(
    name,
    schemes[0].source,
    'read-out',
    'mlrf',
    _MLRF,
    _mlrf_side(encoder, options),
    _mlrf_side(decoder, options),
    _millions(printed),
  )


def _multi_layer(layers: int, printed: float) -> Row:
  side = SideConfig(multi_layer=MultiLayerOptions(layers=layers))
  return Row(
    f'multi_layer.layers={layers}',
    'Dou et al. 2018, Eq. 8',
    'attention',
    'multi_layer, agg',
    _BASE,
    side,
    side,
    _extra(printed),
  )


def _shortcut(
  name: str, baseline: Baseline, feature_fusion: bool, printed: float
) -> Row:
  side = SideConfig(
    shortcut=ShortcutOptions(source='lexical', feature_fusion=feature_fusion)
  )
  return Row(
    name,
    'Emelin et al. 2019, Eq. 5-14',
    'attention',
    'shortcut',
    baseline,
    side,
    side,
    _thousands(printed),
  )


_DEEP = SideConfig(fusion='gtrans', gtrans=GtransOptions(group_size=6))
_CAPSULES = SideConfig(
  fusion='em_routing', routing=RoutingOptions(capsules=512)
)
_EM = 'the paper is 0.07 to 0.17M above what its equations give'
_BIG_EM = 'the paper prints 264M and 490M, whose difference is 225M to 227M'

ROWS = (
  _both('dense', _extra(0.0)),
  _both('linear', _extra(14.7)),
  _both('iterative', _extra(31.5)),
  _both('hierarchical', _extra(23.1)),
  _both('hierarchical', _extra(92.0, 0))._replace(
    name='hierarchical, Big', baseline=_BIG
  ),
  _multi_layer(2, 33.6),
  _multi_layer(3, 37.8),
  _mlrf('average, encoder', 'average', 'none', 10.97),
  _mlrf('feed_forward, encoder', 'feed_forward', 'none', 11.63),
  _mlrf('feed_forward, both', 'feed_forward', 'feed_forward', 12.29),
  _mlrf('hops, encoder', 'hops', 'none', 11.90),
  _mlrf(
    'hops=6, encoder',
    'hops',
    'none',
    12.16,
    dataclasses.replace(_PLAIN, hops=6),
  ),
  _mlrf(
    'hops=6, decoder, one W1 a hop',
    'none',
    'hops',
    13.47,
    dataclasses.replace(_PLAIN, hops=6, independent='per_hop'),
  ),
  _mlrf('hops, both', 'hops', 'hops', 12.82),
  _mlrf('feed_forward and hops', 'feed_forward', 'hops', 12.55),
  _both('dynamic_combination', _extra(25.2)),
  _both('dynamic_routing', _extra(37.8)),
  _both('em_routing', _extra(56.8), _EM),
  _both('em_routing', _extra(226.0, 0), _BIG_EM)._replace(
    name='em_routing, Big',
    baseline=_BIG,
    encoder=_CAPSULES,
    decoder=_CAPSULES,
  ),
  _shortcut('shortcut', _SHORTCUT, False, 71_470.0),
  _shortcut('shortcut.feature_fusion', _SHORTCUT, True, 84_053.0),
  _shortcut('shortcut.feature_fusion, Big', _SHORTCUT_BIG, True, 293_935.0),
  _both('gtrans', _millions(68.1, 1))._replace(
    name='gtrans, 12+12 layers',
    baseline=_GTRANS,
    encoder=_DEEP,
    decoder=_DEEP,
  ),
  _both('gtrans', None),
  _both('transparent', None),
  _both('dlcl', None),
  Row(
    'norm=rezero',
    'Bachlechner et al. 2020, Eq. 1',
    'residual',
    'model.norm',
    _BASE._replace(model=dataclasses.replace(PRESETS['base'], norm='rezero')),
    _NONE,
    _NONE,
  ),
)


def _model(row: Row, encoder: SideConfig, decoder: SideConfig) -> Transformer:
  config = dataclasses.replace(
    row.baseline.model, encoder=encoder, decoder=decoder
  )
  return Transformer(config, row.baseline.source, row.baseline.target, _START)


@functools.cache
def _shapes(model: Transformer) -> Parameters:
  return jax.eval_shape(lambda: initial_parameters(model, 0))


def _count(model: Transformer) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(_shapes(model)))


def parameters(row: Row) -> tuple[int, int]:
  """Parameters of the fused model, and how many more than without fusion."""
  baseline = dataclasses.replace(
    row.baseline.model,
    norm='post' if row.options == 'model.norm' else row.baseline.model.norm,
  )
  plain = _model(
    row._replace(baseline=row.baseline._replace(model=baseline)), _NONE, _NONE
  )
  fused = _count(_model(row, row.encoder, row.decoder))
  return fused, fused - _count(plain)


@functools.cache
def _cached(model: Transformer) -> int:
  """Numbers that decoding keeps of one position of one hypothesis."""

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
  """What decoding caches beyond the baseline, as a share of its cache."""
  plain = _cached(_model(row, _NONE, _NONE))
  return _cached(_model(row, row.encoder, row.decoder)) / plain - 1


def agrees(row: Row) -> bool:
  """Whether the count is what the paper printed, as far as it printed it."""
  if row.printed is None:
    return True
  count = parameters(row)[0 if row.printed.of == 'all' else 1]
  difference = abs(count / row.printed.unit - row.printed.value)
  return difference <= 0.5 * 10**-row.printed.decimals + 1e-9


def _printed(row: Row) -> str:
  if row.printed is None:
    return ''
  value, unit, decimals, of = row.printed
  letter = 'M' if unit == 1e6 else 'K'
  sign = '+' if of == 'extra' else ''
  return f'{sign}{value:,.{decimals}f}{letter}'


def _sides(row: Row) -> str:
  return ', '.join(
    name
    for name, side in (('encoder', row.encoder), ('decoder', row.decoder))
    if side != _NONE
  )


def _cells(row: Row) -> tuple[str, ...]:
  fused, extra = parameters(row)
  cache = extra_cache(row)
  verdict = 'yes' if agrees(row) else f'no: {row.inconsistent or "WRONG"}'
  return (
    f'`{row.name}`',
    row.source,
    row.plug,
    _sides(row) or 'both',
    f'`{row.options}`',
    f'{extra:+,}',
    f'{fused:,}',
    _printed(row),
    verdict if row.printed else '',
    'none' if cache == 0 else f'{cache:+.0%}',
  )


@one_line_errors
def main(argv: list[str]) -> None:
  """Prints the table in Markdown; raises SystemExit(1) on a wrong count."""
  parser = argparse.ArgumentParser(
    prog='python -m fusion_jax.fusion',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parse_arguments(argv, parser)
  header = ('scheme', 'source', 'plugs in at', 'sides', 'options')
  header += ('extra parameters', 'all', 'paper', 'agrees', 'extra cache')
  print(f'| {" | ".join(header)} |')
  print('|' + ' --- |' * len(header))
  for row in ROWS:
    print(f'| {" | ".join(_cells(row))} |', flush=True)
  if not all(agrees(row) or row.inconsistent for row in ROWS):
    raise SystemExit(1)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
