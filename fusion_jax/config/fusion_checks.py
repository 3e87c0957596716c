"""Checks that the fusion options of a stack make sense, alone and together."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from fusion_jax.config.fusion import (
  LITERAL_ROUTING,
  SUBLAYERS,
  GtransOptions,
  HyperOptions,
  Only,
  RoutingOptions,
  Side,
  SideConfig,
  SurfaceOptions,
  parse_groups,
)
from fusion_jax.config.section import fields_of_section
from fusion_jax.errors import require
from fusion_jax.faults import choice_fault

_DEFAULT = SideConfig()
_OTHER: dict[Side, Side] = {'encoder': 'decoder', 'decoder': 'encoder'}

# Sections that multi-layer attention and shortcuts read, besides the scheme's.
_MULTI_LAYER = 'agg', 'multi_layer'
_SHORTCUT = ('shortcut',)
_VALUES = ('value_residual',)


def check_side(
  side: SideConfig,
  name: Side,
  *,
  layers: int,
  width: int,
  norm: str,
) -> None:
  """Refuse values and pairs of values that make no sense."""
  path = f'model.{name}'
  _check_own(side, path)
  _check_read(side, path, name)
  _check_layers(side, path, layers)
  _check_capsules(side, path, width)
  _check_sums(side, path, name, layers)
  _check_first(side, path, norm)
  _check_sources(side, path, name, layers, width)
  _check_routing_form(side.routing, f'{path}.routing')
  _check_pairs(side, path, name, norm)
  if side.fusion == 'gtrans':
    _check_groups(side.gtrans, path, name, layers)
  if side.fusion == 'surface_fusion':
    _check_surface(side.surface, f'{path}.surface')


def unread_options(side: SideConfig, name: Side) -> tuple[str, ...]:
  """Return the options that nothing in a stack reads."""
  chosen, sections = {side.fusion, name}, set()
  if side.rules:
    sections.add(side.rules.options)
  if side.multi_layer.layers > 1:
    sections.update(_MULTI_LAYER)
  if side.shortcut.source != 'none':
    sections.update(_SHORTCUT)
  if side.value_residual.kind != 'none':
    sections.update(_VALUES)
  return tuple(
    f'{section}.{field}'
    for section, options in fields_of_section(SideConfig).items()
    if dataclasses.is_dataclass(options.annotation)
    for field, info in fields_of_section(options.annotation).items()
    if section not in sections or not _is_read(info.metadata, chosen)
  )


def _is_read(metadata: Iterable[Any], chosen: set[str]) -> bool:
  only = (set(each.readers) for each in metadata if isinstance(each, Only))
  return all(chosen & readers for readers in only)


def _check_own(side: SideConfig, path: str) -> None:
  options = side.rules.own if side.rules else None
  if options is None:
    require(
      not side.own,
      f'{path}.own',
      f'has no effect with {path}.fusion={side.fusion!r}; leave it out',
    )
    return
  names = [name for name, _ in side.own]
  for name in names:
    fault = choice_fault(name, fields_of_section(options))
    require(not fault, f'{path}.own', f'the name of an option {fault}')
  require(len(set(names)) == len(names), f'{path}.own', 'names an option twice')
  side.own_options(options)


def _check_read(side: SideConfig, path: str, name: Side) -> None:
  elsewhere = unread_options(side, _OTHER[name])
  for option in unread_options(side, name):
    section, _, field = option.partition('.')
    value = getattr(getattr(side, section), field)
    why = f'with {path}.fusion={side.fusion!r}'
    if option not in elsewhere:
      why = f'in the {name}'
    require(
      value == getattr(getattr(_DEFAULT, section), field),
      f'{path}.{option}',
      f'{value!r} has no effect {why}; leave it out',
    )


def _check_groups(
  options: GtransOptions, path: str, name: Side, layers: int
) -> None:
  groups = options.groups(layers, name)
  require(
    bool(groups),
    f'{path}.gtrans.last_group',
    f"'floor' leaves no group of {options.layers_of_group(name)} among "
    f'{layers} layers',
  )
  if options.inference_groups and name == 'decoder':
    field = f'{path}.gtrans.inference_groups'
    parse_groups(options.inference_groups, len(groups), field)


def _check_surface(options: SurfaceOptions, path: str) -> None:
  unread = {
    'hard': ('temperature', 'least'),
    'soft': ('weight', 'combine', 'least'),
    'learned': ('temperature',),
  }
  for field in unread[options.kind]:
    value = getattr(options, field)
    require(
      value == getattr(SurfaceOptions, field),
      f'{path}.{field}',
      f'{value!r} has no effect with surface.kind={options.kind!r}; leave it '
      'out',
    )
  least, most = options.least, 1 - options.least
  require(
    options.kind != 'learned' or least < options.weight < most,
    f'{path}.weight',
    f'{options.weight} is not between surface.least={least} and 1 - {least}',
  )


def _check_layers(side: SideConfig, path: str, layers: int) -> None:
  most = layers if side.multi_layer.partial else layers - 1
  require(
    side.multi_layer.layers <= max(most, 1),
    f'{path}.multi_layer.layers',
    f'{side.multi_layer.layers} is more than any of {layers} layers has '
    f'below it; at most {max(most, 1)}',
  )


def _check_sums(side: SideConfig, path: str, name: Side, layers: int) -> None:
  others = ', or give mudd.memory_ways' if name == 'encoder' else ''
  require(
    side.fusion != 'mudd' or side.mudd.ways > 0 or side.mudd.memory_ways > 0,
    f'{path}.mudd.ways',
    f'0 leaves nothing to sum; use 1 or 4{others}',
  )
  for field in ('dilation', 'period'):
    value = getattr(side.dlcl, field)
    require(
      value <= layers or side.fusion != 'dlcl',
      f'{path}.dlcl.{field}',
      f'{value} leaves nothing to sum in {layers} layers; at most {layers}',
    )
  if side.fusion == 'grn':
    require(
      side.grn.last <= max(layers - 2, 0),
      f'{path}.grn.last',
      f'{side.grn.last} leaves nothing to sum in {layers} layers; at most '
      f'{max(layers - 2, 0)}, where 0 reads all outputs',
    )


def _check_first(side: SideConfig, path: str, norm: str) -> None:
  dlcl = side.dlcl
  others = {
    'model.norm': (norm, 'post'),
    f'{path}.dlcl.norms': (dlcl.norms, 'auto'),
    f'{path}.dlcl.normalize': (dlcl.normalize, 'none'),
  }
  for other, (value, needed) in others.items():
    require(
      dlcl.first == 'fixed' or value == needed,
      f'{path}.dlcl.first',
      f'{dlcl.first!r} has no effect with {other}={value!r}; leave it out',
    )


def _check_capsules(side: SideConfig, path: str, width: int) -> None:
  if side.rules and side.rules.options == 'routing':
    capsules = side.routing.capsule_count(width)
    require(
      width % capsules == 0,
      f'{path}.routing.capsules',
      f'must divide model.width {width}, got {capsules}',
    )


def _check_sources(
  side: SideConfig, path: str, name: Side, layers: int, width: int
) -> None:
  if side.fusion != 'attention_residuals':
    return
  options, field = side.attention_residual, f'{path}.attention_residual'
  require(
    width % options.heads == 0,
    f'{field}.heads',
    f'must divide model.width {width}, got {options.heads}',
  )
  require(
    options.kind == 'delta' or not options.embedding,
    f'{field}.embedding',
    f'{options.embedding!r} has no effect with {field}.kind={options.kind!r}, '
    'whose sources always have it; leave it out',
  )
  most = layers * (SUBLAYERS[name] if options.sources == 'sublayer' else 1)
  require(
    options.block <= most,
    f'{field}.block',
    f'{options.block} is more than the {most} {options.sources}s of the stack; '
    f'at most {most}',
  )


def _check_routing_form(options: RoutingOptions, path: str) -> None:
  if options.form == 'stable':
    return
  for field, literal in LITERAL_ROUTING.items():
    value = getattr(options, field)
    require(
      value in (literal, getattr(RoutingOptions, field)),
      f'{path}.{field}',
      f"form='paper' makes it {literal!r}, got {value!r}; leave it out, or use "
      "form='stable' and set each option",
    )


def _check_pairs(side: SideConfig, path: str, name: Side, norm: str) -> None:
  _check_place(side, path, name, norm)
  _check_keys_and_values(side, path)
  _check_shortcut(side, path, name, norm)
  _check_residual(side, path)
  _check_values(side, path)
  if side.start == 'baseline':
    _check_baseline_start(side, path)


def _check_place(side: SideConfig, path: str, name: Side, norm: str) -> None:
  require(
    side.rules is None or name in side.rules.sides,
    f'{path}.fusion',
    f'{side.fusion!r} does not fit the {name}; it belongs to model.'
    f'{side.rules.sides[0] if side.rules else name}.fusion',
  )
  require(
    side.rules is None or norm in side.rules.norms,
    f'{path}.fusion',
    f'{side.fusion!r} needs model.norm='
    f'{" or ".join(map(repr, side.rules.norms if side.rules else ()))}, '
    f'got {norm!r}',
  )


def _check_keys_and_values(side: SideConfig, path: str) -> None:
  """Refuse two sources of the keys and values of one self-attention."""
  shortcut, many = side.shortcut, side.multi_layer.layers > 1
  require(
    not (many and shortcut.source != 'none'),
    f'{path}.multi_layer.layers',
    'multi-layer attention and shortcut.source='
    f'{shortcut.source!r} both replace the keys and values; choose one',
  )
  owner = (
    side.fusion in ('hierarchical', 'dlcl', 'mudd', 'grn')
    and side.owns_layer_inputs
  )
  require(
    not (many and owner),
    f'{path}.multi_layer.layers',
    'multi-layer attention reads the layers below, whose place '
    f'fusion={side.fusion!r} takes; choose one',
  )
  require(
    not (shortcut.source == 'non_lexical' and owner),
    f'{path}.shortcut.source',
    "'non_lexical' reads the layer below the last, whose place "
    f'fusion={side.fusion!r} takes; choose one',
  )
  streams = side.ways > 1
  require(
    not (streams and shortcut.source != 'none' and shortcut.where != 'cross'),
    f'{path}.shortcut.source',
    f'{shortcut.source!r} and fusion={side.fusion!r} with {side.fusion}.ways='
    f'{side.ways} both replace the keys and values; choose one, or '
    f'{side.fusion}.ways=1',
  )


def _check_shortcut(side: SideConfig, path: str, name: Side, norm: str) -> None:
  shortcut, encoder = side.shortcut, name == 'encoder'
  require(
    not (encoder and shortcut.source != 'none' and shortcut.where != 'self'),
    f'{path}.shortcut.where',
    f'{shortcut.where!r} needs cross-attention, which the encoder lacks; '
    "'self' is right there",
  )
  require(
    not (shortcut.source == 'non_lexical' and shortcut.where != 'self'),
    f'{path}.shortcut.where',
    f"{shortcut.where!r} reads the encoder's embeddings, which "
    "source='non_lexical' does not; use 'self' or source='lexical'",
  )
  require(
    not (shortcut.author_compat and _owns_residual(side)),
    f'{path}.shortcut.author_compat',
    'starts the residual from the normalised input, and with fusion='
    f'{side.fusion!r} the residual is not one array; choose one',
  )
  require(
    not (shortcut.author_compat and norm != 'pre'),
    f'{path}.shortcut.author_compat',
    f'is about the norm before attention; model.norm={norm!r} has none',
  )


def _check_residual(side: SideConfig, path: str) -> None:
  require(
    not (side.skip_gains and _owns_residual(side)),
    f'{path}.skip_gains',
    f'True and fusion={side.fusion!r} both replace the residual; choose one',
  )
  require(
    side.hyper.kind == 'manifold'
    or side.hyper.rounds == HyperOptions.rounds
    or side.fusion != 'hyper_connections',
    f'{path}.hyper.rounds',
    f'{side.hyper.rounds} has no effect with hyper.kind={side.hyper.kind!r}; '
    'leave it out',
  )


def _owns_residual(side: SideConfig) -> bool:
  return side.rules is not None and side.rules.owns_residual


def _check_values(side: SideConfig, path: str) -> None:
  if side.value_residual.kind == 'none':
    return
  others = {
    f'shortcut.source={side.shortcut.source!r}': side.shortcut.source != 'none',
    'multi_layer.layers > 1': side.multi_layer.layers > 1,
    f'fusion={side.fusion!r} with {side.fusion}.ways={side.ways}': side.ways
    > 1,
  }
  for name, chosen in others.items():
    require(
      not chosen,
      f'{path}.value_residual.kind',
      f'{side.value_residual.kind!r} and {name} both replace the values of '
      'attention; choose one',
    )


def _check_baseline_start(side: SideConfig, path: str) -> None:
  many, shortcut = side.multi_layer.layers > 1, side.shortcut.source != 'none'
  values = side.value_residual.kind
  why = 'layers have no values' if values == 'shared' else 'weights are fixed'
  require(
    values in ('none', 'learnable'),
    f'{path}.start',
    f"'baseline' cannot be exact with value_residual.kind={values!r}, whose "
    f"{why}; use 'learnable', or start='fresh'",
  )
  inside = many or shortcut or values != 'none' or side.skip_gains
  require(
    side.fusion != 'none' or inside,
    f'{path}.start',
    "'baseline' is about a fusion, and there is none; choose "
    f"{path}.fusion, or start='fresh'",
  )
  require(
    not side.shortcut.author_compat,
    f'{path}.start',
    "'baseline' cannot be exact with shortcut.author_compat, which starts the "
    "residual from the normalised input; use start='fresh'",
  )
