"""Types of numbers and texts that fields and flags can have, with their bounds.

Upper bounds that no comment explains are far above what can work.
"""

import argparse
import functools
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import pydantic
from pydantic import AfterValidator, Field

from fusion_jax.faults import first_fault, shown


def _not_tiny(value: float) -> float:
  """Refuse what is 0 as a float32, or as the square of one."""
  if value < 1e-30:
    raise ValueError(f'must be >= 1e-30, got {value}')
  return value


# What an int32 can hold.
_Int: TypeAlias = Annotated[int, Field(le=2**31 - 1)]
Positive: TypeAlias = Annotated[_Int, Field(ge=1)]
Natural: TypeAlias = Annotated[_Int, Field(ge=0)]
# Positions along an axis of an array; with 0 where that chooses one.
Size: TypeAlias = Annotated[int, Field(ge=1, le=2**20)]
SizeOrZero: TypeAlias = Annotated[int, Field(ge=0, le=2**20)]
# Layers and the like, each of which is compiled.
Depth: TypeAlias = Annotated[int, Field(ge=1, le=1_000)]
Beam: TypeAlias = Annotated[int, Field(ge=1, le=4_096)]
# JAX takes a seed modulo 2^32.
Seed: TypeAlias = Annotated[int, Field(ge=0, le=2**32 - 1)]

# What float32 can hold, and still be multiplied.
NotNegative: TypeAlias = Annotated[float, Field(ge=0, le=10**9)]
PositiveFloat: TypeAlias = Annotated[
  float, Field(gt=0, le=10**9), AfterValidator(_not_tiny)
]
Probability: TypeAlias = Annotated[float, Field(ge=0, le=1)]
# Below 1: of what is dropped or smoothed away, something is left.
Share: TypeAlias = Annotated[float, Field(ge=0, lt=1)]


def _writable(text: str) -> str:
  """Refuse what is no UTF-8, or has a character that no file name can have."""
  if '\0' in text or any('\ud800' <= each <= '\udfff' for each in text):
    raise ValueError(f'must be UTF-8 text without NUL, got {shown(text)}')
  return text


Text: TypeAlias = Annotated[str, AfterValidator(_writable)]
# JSON has lists only.
Texts: TypeAlias = Annotated[tuple[Text, ...], Field(strict=False)]


def number(kind: Any) -> Callable[[str], Any]:
  """Return a reader of a flag's text as a number within bounds."""
  plain = typing.get_args(kind)[0]

  def read(text: str) -> Any:
    try:
      value = plain(text)
    except ValueError:
      value = text
    try:
      return adapter(kind, finite=True).validate_python(value, strict=True)
    except pydantic.ValidationError as error:
      raise argparse.ArgumentTypeError(first_fault(error)[1]) from None

  return read


@functools.cache
def adapter(kind: Any, finite: bool = False) -> pydantic.TypeAdapter:
  """Return Pydantic's reader and writer of a type, made once."""
  config = pydantic.ConfigDict(allow_inf_nan=False) if finite else None
  return pydantic.TypeAdapter(kind, config=config)
