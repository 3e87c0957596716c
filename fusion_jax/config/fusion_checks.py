"""Which choices about fusion make sense, alone and together."""

import types

from fusion_jax.config.fusion import (
  LITERAL_ROUTING,
  GtransOptions,
  Only,
  RoutingOptions,
  Side,
  SideConfig,
  parse_groups,
)
from fusion_jax.config.section import fields_of_section
from fusion_jax.errors import require

_DEFAULT = SideConfig()

# Sections of a side, and the schemes that read them; 'multi_layer' stands for
# multi-layer attention, 'shortcut' for shortcuts.
_READERS = types.MappingProxyType(
  {
    'dense': ('dense',),
    'linear': ('linear',),
    'agg': ('iterative', 'hierarchical', 'multi_layer'),
    'mlrf': ('average', 'feed_forward', 'hops'),
    'dynamic': ('dynamic_combination',),
    'routing': ('dynamic_routing', 'em_routing'),
    'gtrans': ('gtrans',),
    'transparent': ('transparent',),
    'dlcl': ('dlcl',),
    'shortcut': ('shortcut',),
    'multi_layer': ('multi_layer',),
  }
)


def check_side(
  side: SideConfig,
  name: Side,
  *,
  layers: int,
  width: int,
  norm: str,
) -> None:
  """Refuse values and pairs that make no sense.

  Args:
    side: What is chosen for a stack.
    name: Which of the two stacks.
    layers: Number of its layers.
    width: Model width D.
    norm: Norm of the model.

  Raises:
    InputError: Names the field, or both fields of a pair.
  """
  path = f'model.{name}'
  _check_read(side, path, name)
  _check_layers(side, path, layers)
  _check_capsules(side, path, width)
  _check_routing_form(side.routing, f'{path}.routing')
  _check_pairs(side, path, name, norm)
  if side.fusion == 'gtrans':
    _check_groups(side.gtrans, path, name, layers)


def unread_options(side: SideConfig, name: Side) -> tuple[str, ...]:
  """Return the options that nothing of a stack reads.

  Args:
    side: What is chosen for the stack.
    name: Which of the two stacks.

  Returns:
    'mlrf.hops' and the like.
  """
  chosen = {side.fusion, name}
  if side.multi_layer.layers > 1:
    chosen.add('multi_layer')
  if side.shortcut.source != 'none':
    chosen.add('shortcut')
  unread = []
  for section, readers in _READERS.items():
    is_read = not chosen.isdisjoint(readers)
    for field, info in fields_of_section(type(getattr(side, section))).items():
      only = [each for each in info.metadata if isinstance(each, Only)]
      wanted = [set(each.readers) for each in only]
      if not is_read or any(chosen.isdisjoint(each) for each in wanted):
        unread.append(f'{section}.{field}')
  return tuple(unread)


def _check_read(side: SideConfig, path: str, name: Side) -> None:
  for option in unread_options(side, name):
    section, _, field = option.partition('.')
    value = getattr(getattr(side, section), field)
    require(
      value == getattr(getattr(_DEFAULT, section), field),
      f'{path}.{option}',
      f'{value!r} has no effect with {path}.fusion={side.fusion!r}; leave it '
      'out',
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


def _check_layers(side: SideConfig, path: str, layers: int) -> None:
  most = layers if side.multi_layer.partial else layers - 1
  require(
    side.multi_layer.layers <= max(most, 1),
    f'{path}.multi_layer.layers',
    f'{side.multi_layer.layers} is more than any of {layers} layers has '
    f'below it; at most {max(most, 1)}',
  )


def _check_capsules(side: SideConfig, path: str, width: int) -> None:
  if side.fusion in ('dynamic_routing', 'em_routing'):
    capsules = side.routing.capsule_count(width)
    require(
      width % capsules == 0,
      f'{path}.routing.capsules',
      f'must divide model.width {width}, got {capsules}',
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
  encoder = name == 'encoder'
  shortcut, many = side.shortcut, side.multi_layer.layers > 1
  require(
    encoder or side.fusion != 'transparent',
    f'{path}.fusion',
    "'transparent' gives memories to the decoder's layers: it belongs to "
    'model.encoder.fusion',
  )
  require(
    not (many and shortcut.source != 'none'),
    f'{path}.multi_layer.layers',
    'multi-layer attention and shortcut.source='
    f'{shortcut.source!r} both replace the keys and values; choose one',
  )
  owner = side.fusion in ('hierarchical', 'dlcl') and side.owns_layer_inputs
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
    not (shortcut.author_compat and norm != 'pre'),
    f'{path}.shortcut.author_compat',
    f'is about the norm before attention; model.norm={norm!r} has none',
  )
  if side.start == 'baseline':
    _check_baseline_start(side, path)


def _check_baseline_start(side: SideConfig, path: str) -> None:
  many, shortcut = side.multi_layer.layers > 1, side.shortcut.source != 'none'
  require(
    side.fusion != 'none' or many or shortcut,
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
