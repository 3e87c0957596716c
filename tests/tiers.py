"""What of a parametrised test the short run has."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def extended_but(
  values: Iterable[Any], core: Callable[[Any], bool] | Iterable[Any]
) -> list[Any]:
  """The values as parameters; what is not in the core is marked `extended`.

  The core is a container, or says of a value whether it belongs to it.
  """
  belongs = core if callable(core) else set(core).__contains__
  return [
    value
    if belongs(value)
    else pytest.param(
      *(value if isinstance(value, tuple) else (value,)),
      marks=pytest.mark.extended,
    )
    for value in values
  ]
