"""Fusion of layers: a scheme a file, and the table of them."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, get_args

from pydantic.dataclasses import is_pydantic_dataclass

from fusion_jax.bounds import choice_fault
from fusion_jax.config.schemes import (
  add_scheme,
  attention_source,
  fusion_scheme,
  scheme_names,
  source_names,
)
from fusion_jax.config.section import fields_of_section
from fusion_jax.errors import require

if TYPE_CHECKING:
  from fusion_jax.fusion.scheme import AttentionSource, Scheme


class _Table(Mapping):
  """Rows by name, each imported when it is first read."""

  def __init__(self, names, row):
    self._names, self._row = names, row

  def __getitem__(self, name: str):
    if name not in self._names():
      raise KeyError(name)
    return self._row(name)

  def __iter__(self) -> Iterator[str]:
    return iter(self._names())

  def __len__(self) -> int:
    return len(self._names())


SCHEMES: 'Mapping[str, Scheme]' = _Table(scheme_names, fusion_scheme)
SOURCES: 'Mapping[str, AttentionSource]' = _Table(
  source_names, attention_source
)


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
  add_scheme(scheme.name, scheme)
