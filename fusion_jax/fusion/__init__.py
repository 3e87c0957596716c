"""Fusion of layers: a scheme a file, and the table of them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from pydantic.dataclasses import is_pydantic_dataclass

from fusion_jax.bounds import choice_fault
from fusion_jax.config.fusion import ROWS
from fusion_jax.config.section import fields_of_section
from fusion_jax.errors import InputError, require

if TYPE_CHECKING:
  from fusion_jax.fusion.scheme import AttentionSource, Scheme


SCHEMES: 'Mapping[str, Scheme]' = ROWS['fusion']
SOURCES: 'Mapping[str, AttentionSource]' = ROWS['attention']


def register(scheme: 'Scheme') -> None:
  """Add a scheme from outside the package, which configs may then name.

  Raises:
    InputError: A scheme of that name exists already, or what it declares is no
      section with defaults, or no view.
  """
  # Before `fusion_jax.fusion.scheme` is needed by a program without schemes.
  from fusion_jax.fusion.scheme import DeclaredView

  place = f'fusion={scheme.name!r}'
  for view in scheme.views:
    fault = choice_fault(view, get_args(DeclaredView))
    require(not fault, place, f'its view {fault}')
  options = scheme.options
  fields = (
    fields_of_section(options) if is_pydantic_dataclass(options) else None
  )
  require(
    fields is not None and not any(f.is_required() for f in fields.values()),
    place,
    'its options must be a class with fusion_jax.config.section.section, whose '
    'fields all have defaults',
  )
  if scheme.name == 'none' or scheme.name in SCHEMES:
    raise InputError(f'{place}: there is such a scheme already')
  ROWS['fusion'][scheme.name] = scheme
