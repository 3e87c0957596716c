"""What can be chosen about the fusion of a stack.

The options of a scheme are in its own file of `fusion_jax/fusion`; their
defaults are the papers', except where those were measured to train badly. Sizes
that default to 0 follow the model, as the text below them says.
"""

import json
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

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
from fusion_jax.config.schemes import (
  attention_source,
  fusion_scheme,
  scheme_names,
  source_names,
)
from fusion_jax.config.section import fields_of_section, section
from fusion_jax.errors import require

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
  """Return the class of the options of a scheme or a source of attention.

  Args:
    field: 'fusion' or 'attention'.
    name: Value of the field.
    place: Dotted name of the field.

  Raises:
    InputError: There is no such scheme or source.
  """
  if name == 'none':
    return NoOptions
  fault = _scheme_fault(name) if field == 'fusion' else _source_fault(name)
  require(not fault, place, fault)
  row = fusion_scheme if field == 'fusion' else attention_source
  return row(name).options


def _scheme_fault(name: str) -> str:
  fault = choice_fault(name, ('none', *scheme_names()))
  return fault and f'{fault} (a scheme of your own needs --user_dir)'


def _source_fault(name: str) -> str:
  return choice_fault(name, ('none', *source_names()))


def _named(fault: Callable[[str], str]) -> Callable[[str], str]:
  """Return a reader of a name that refuses one with a fault."""

  def read(name: str) -> str:
    if message := fault(name):
      raise ValueError(message)
    return name

  return read


def _options_of(field: str) -> Callable[[Any, Any], Any]:
  """Return a reader of the options that belong to the name in a field."""

  def read(value: Any, info: Any) -> Any:
    if field not in info.data:
      return value  # The name is at fault, and is reported.
    kind = options_class(field, info.data[field], f'model.*.{field}')
    if value is None or (is_default(value) and not isinstance(value, kind)):
      return kind()
    if isinstance(value, Mapping):
      return _read_section(kind, value)
    if not isinstance(value, kind):
      raise ValueError(
        f'must be {kind.__name__}, the options of {field}='
        f'{info.data[field]!r}, got {shown(value)}'
      )
    return value

  return read


def is_default(options: Any) -> bool:
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


@section('model.*')
class SideConfig:
  """The fusion of one stack.

  One scheme decides what follows the stack reads (and, for some, what its
  layers read). A source of attention is inside its attention, and goes with any
  scheme that leaves the layers' inputs alone.
  """

  fusion: Annotated[Text, AfterValidator(_named(_scheme_fault))] = 'none'
  """Fusion scheme: 'none', or a name that `fusion-jax schemes` lists."""

  options: Annotated[
    Any, BeforeValidator(_options_of('fusion')), Field(validate_default=True)
  ] = None
  """Options of the scheme; with another scheme they are that one's defaults."""

  attention: Annotated[Text, AfterValidator(_named(_source_fault))] = 'none'
  """What attention reads beside the layer below: 'none', 'multi_layer',
  'shortcut' or 'value_residual'."""

  attention_options: Annotated[
    Any, BeforeValidator(_options_of('attention')), Field(validate_default=True)
  ] = None
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
    return fusion_scheme(self.fusion)

  @property
  def source(self) -> Any:
    """The `AttentionSource`; None without one."""
    return attention_source(self.attention)

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
