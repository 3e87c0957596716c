"""Parameters of modules, with the axis names by which they are sharded."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
from jaxtyping import Array, Float

Initializer = Callable[..., Array]


def parameter(
  module: nn.Module,
  name: str,
  start: Initializer,
  axes: tuple[str | None, ...],
  shape: tuple[int, ...],
) -> Float[Array, '...']:
  """Return a parameter of a module, which is drawn at initialisation.

  Args:
    axes: Logical name of each axis, which `parallel` maps to the mesh; None:
      the axis is not sharded.

  Returns:
    The parameter, without Flax's box.
  """
  # The stubs of Flax do not know that `param` takes the array out of the box.
  boxed: Callable[..., Any] = nn.with_logical_partitioning(start, axes)
  return module.param(name, boxed, shape)
