"""What can be chosen about the fusion of a stack.

The options of a scheme are in its own file of `fusion_jax/fusion`; their
defaults are the papers', except where those were measured to train badly. Sizes
that default to 0 follow the model, as the text below them says.
"""

import collections
import json
import pkgutil
import types
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from fusion_jax.bounds import (
  OPTION,
  Text,
  adapter,
  choice_fault,
  first_fault,
  shown,
)
from fusion_jax.config.section import fields_of_section, section
from fusion_jax.errors import require


class _Rows(collections.UserDict[str, Any]):
  """Rows by name; those of the package are imported when they are read."""

  def __getitem__(self, name: str) -> Any:
    row = self.data[name]
    if isinstance(row, str):
      return pkgutil.resolve_name(f'fusion_jax.fusion.{row}')
    return row


_SCHEMES = {
  'dense': 'dlcl:DENSE',
  'linear': 'linear:LINEAR',
  'iterative': 'tree:ITERATIVE',
  'hierarchical': 'tree:HIERARCHICAL',
  'average': 'average:SCHEME',
  'feed_forward': 'feed_forward:SCHEME',
  'hops': 'hops:SCHEME',
  'dynamic_combination': 'linear:DYNAMIC_COMBINATION',
  'dynamic_routing': 'capsules:DYNAMIC_ROUTING',
  'em_routing': 'capsules:EM_ROUTING',
  'gtrans': 'gtrans:SCHEME',
  'transparent': 'transparent:SCHEME',
  'dlcl': 'dlcl:DLCL',
  'mudd': 'mudd:SCHEME',
  'grn': 'grn:SCHEME',
  'hyper_connections': 'hyper_connections:SCHEME',
  'attention_residuals': 'attention_residuals:SCHEME',
  'surface_fusion': 'surface:SCHEME',
}
_SOURCES = {
  'multi_layer': 'multi_layer:SOURCE',
  'shortcut': 'shortcuts:SOURCE',
  'value_residual': 'value_residual:SOURCE',
}
# What may stand in a field of `SideConfig`, beside 'none': each `Scheme`, those
# of the user last, and each `AttentionSource`.
ROWS: Final = types.MappingProxyType(
  {'fusion': _Rows(_SCHEMES), 'attention': _Rows(_SOURCES)}
)


Side = Literal['encoder', 'decoder']
SIDES: tuple[Side, ...] = 'encoder', 'decoder'
# Of a layer of each side.
SUBLAYERS: Mapping[Side, int] = types.MappingProxyType(
  {'encoder': 2, 'decoder': 3}
)


class Only(NamedTuple):
  """Says of an option that only one side reads it."""

  side: Side


@section('model.*.options')
class NoOptions:
  """The options of a scheme that has none."""


# The section of `SideConfig` that belongs to the name in a field.
OPTIONS_OF: Final = types.MappingProxyType(
  {'fusion': 'options', 'attention': 'attention_options'}
)


def options_class(field: str, name: str, place: str) -> type:
  """Return the class of the options of a scheme or a source of attention."""
  fault = _name_fault(field, name)
  require(not fault, place, fault)
  return NoOptions if name == 'none' else ROWS[field][name].options


def _name_fault(field: str, name: str) -> str:
  fault = choice_fault(name, ('none', *ROWS[field]))
  if fault and field == 'fusion':
    fault += ' (a scheme of your own needs --user_dir)'
  return fault


def _check_name(name: str, info: Any) -> str:
  if fault := _name_fault(info.field_name, name):
    raise ValueError(fault)
  return name


def _read_options(value: Any, info: Any) -> Any:
  """Return the options that belong to the name in the field before them."""
  (field,) = (f for f, own in OPTIONS_OF.items() if own == info.field_name)
  if field not in info.data:
    return value  # The name is at fault, and is reported.
  kind = options_class(field, info.data[field], f'model.*.{field}')
  if isinstance(value, kind):
    return value
  if value is None or _is_default(value):
    return kind()
  if isinstance(value, Mapping):
    return _read_section(kind, value)
  raise ValueError(
    f'must be {kind.__name__}, the options of {field}='
    f'{info.data[field]!r}, got {shown(value)}'
  )


def _is_default(options: Any) -> bool:
  """Return whether the options of a scheme are its defaults."""
  is_section = pydantic.dataclasses.is_pydantic_dataclass(type(options))
  return is_section and options == type(options)()


def _read_section(kind: type, values: Mapping[str, Any]) -> Any:
  try:
    return adapter(kind).validate_json(json.dumps(values))
  except pydantic.ValidationError as error:
    option, message = first_fault(error)
    if error.errors()[0]['type'] == 'unexpected_keyword_argument':
      names = fields_of_section(kind)
      choice = choice_fault(option, names) if names else 'there are none'
      message = f'no such option; {choice}'
    details = {'option': option, 'message': message}
    raise PydanticCustomError(OPTION, '{option}: {message}', details) from None


_Name: TypeAlias = Annotated[Text, AfterValidator(_check_name)]
_Options: TypeAlias = Annotated[
  Any, BeforeValidator(_read_options), Field(validate_default=True)
]


@section('model.*')
class SideConfig:
  """The fusion of one stack.

  One scheme decides what follows the stack reads (and, for some, what its
  layers read). A source of attention is inside its attention, and goes with any
  scheme that leaves the layers' inputs alone.
  """

  fusion: _Name = 'none'
  """Fusion scheme: 'none', or a name that `fusion-jax schemes` lists."""

  options: _Options = None
  """Options of the scheme; with another scheme they are that one's defaults."""

  attention: _Name = 'none'
  """What attention reads beside the layer below: 'none', 'multi_layer',
  'shortcut' or 'value_residual'."""

  attention_options: _Options = None
  """Options of the source of attention."""

  start: Literal['fresh', 'baseline'] = 'fresh'
  """'baseline': new parameters start so that the model computes what it would
  without the fusion: as identity maps where that is exact, otherwise behind
  gates that start at 0."""

  input_norm: Literal['auto', 'none', 'per_layer'] = 'auto'
  """Whether every layer that is fused has a norm of its own; 'auto': with
  pre-norm."""

  skip_gains: bool = False
  """Whether what a sublayer adds to is multiplied by a learned gain, which
  starts at 1 (Pagliardini et al. 2024)."""

  @property
  def scheme(self) -> Any:
    """The `Scheme`; None without one."""
    return ROWS['fusion'].get(self.fusion)

  @property
  def source(self) -> Any:
    """The `AttentionSource`; None without one."""
    return ROWS['attention'].get(self.attention)

  def per_layer_norms(self, norm: str) -> bool:
    """Return whether every layer that is fused has a norm of its own."""
    return self.input_norm == 'per_layer' or (
      self.input_norm == 'auto' and norm == 'pre'
    )

  @property
  def combine(self) -> Literal['arithmetic', 'geometric']:
    """How the predictions of a decoder are mixed, if it has several."""
    return getattr(self.options, 'combine', 'arithmetic')

  @property
  def owns_layer_inputs(self) -> bool:
    """Whether layers read something else than the layer below."""
    return bool(self.scheme and self.scheme.owns_layer_inputs(self.options))

  @property
  def owns_residual(self) -> bool:
    """Whether sublayers are added in a way of the scheme's own."""
    return bool(self.scheme and 'residual' in self.scheme.plugs.values())

  @property
  def ways(self) -> int:
    """Number of sums that a layer reads; several are its keys and values."""
    return getattr(self.options, 'ways', 1)


def unread_options(config: SideConfig, side: Side) -> list[str]:
  """Return the options that this side does not read, with dots."""
  return [
    f'{section}.{name}'
    for section in ('options', 'attention_options')
    for name, field in fields_of_section(type(getattr(config, section))).items()
    for reader in field.metadata
    if isinstance(reader, Only) and reader.side != side
  ]
