"""Checks that the fusion of a stack makes sense in its model.

What a scheme or a source of attention demands by itself, its own `check` says.
"""

from typing import TYPE_CHECKING

from fusion_jax.config.fusion import Side, SideConfig, unread_options
from fusion_jax.config.section import fields_of_section
from fusion_jax.errors import require

if TYPE_CHECKING:
  from fusion_jax.config.model import ModelConfig


def check_side(config: 'ModelConfig', side: Side) -> None:
  """Refuse values and pairs of values that make no sense."""
  chosen, path = config.side(side), f'model.{side}'
  _check_place(chosen, path, side, config.norm)
  _check_unread(chosen, path, side)
  for part in filter(None, (chosen.scheme, chosen.source)):
    part.check(config, side)
  require(
    not (chosen.skip_gains and chosen.owns_residual),
    f'{path}.skip_gains',
    f'True and fusion={chosen.fusion!r} both replace the residual; choose one',
  )
  if chosen.start == 'baseline':
    _check_baseline_start(chosen, path)
  if config.scan_layers:
    _check_scan(chosen, path)


def _check_place(chosen: SideConfig, path: str, side: Side, norm: str) -> None:
  scheme = chosen.scheme
  if scheme is None:
    return
  require(
    side in scheme.modules,
    f'{path}.fusion',
    f'{chosen.fusion!r} does not fit the {side}; it belongs to model.'
    f'{next(iter(scheme.modules))}.fusion',
  )
  require(
    norm in scheme.norms,
    f'{path}.fusion',
    f'{chosen.fusion!r} needs model.norm='
    f'{" or ".join(map(repr, scheme.norms))}, got {norm!r}',
  )


def _check_unread(chosen: SideConfig, path: str, side: Side) -> None:
  for name in unread_options(chosen, side):
    section, _, option = name.partition('.')
    options = getattr(chosen, section)
    value = getattr(options, option)
    require(
      value == fields_of_section(type(options))[option].default,
      f'{path}.{name}',
      f'{value!r} has no effect in the {side}; leave it out',
    )


def _check_baseline_start(chosen: SideConfig, path: str) -> None:
  fused = chosen.fusion != 'none' or chosen.attention != 'none'
  require(
    fused or chosen.skip_gains,
    f'{path}.start',
    "'baseline' is about a fusion, and there is none; choose "
    f"{path}.fusion, or start='fresh'",
  )


def _check_scan(chosen: SideConfig, path: str) -> None:
  source = chosen.source
  others = {
    f'attention={chosen.attention!r}': source and not source.layers_alike,
    f'fusion={chosen.fusion!r}': chosen.owns_layer_inputs,
  }
  for what, differs in others.items():
    require(
      not differs,
      'model.scan_layers',
      f'needs layers that are all alike, which {path} with {what} has not; '
      'choose one',
    )
