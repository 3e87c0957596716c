"""The mean of parameters, two sets of them in memory at a time."""

import functools

import jax
import jax.numpy as jnp

from fusion_jax.models.transformer import Parameters


class RunningMean:
  """(p_1 + ... + p_N) / N, summed in the order given.

  The sum is float32, overwrites the first set in place and lies as it does.

  Attributes:
    count: N so far.
  """

  def __init__(self):
    """Starts with no parameters."""
    self.count = 0
    self._total: Parameters | None = None

  def add(self, parameters: Parameters) -> None:
    """Adds a set; the first one must not be used afterwards."""
    if self.count:
      parameters = _sum(self._total, parameters)
    self._total = parameters
    self.count += 1

  def value(self) -> Parameters:
    """The mean of what was added, at least one set; it ends the sum."""
    if self.count == 1:
      return self._total
    return _quotient(self._total, jnp.float32(self.count))


@functools.partial(jax.jit, donate_argnums=0)
def _sum(total: Parameters, parameters: Parameters) -> Parameters:
  return jax.tree.map(jnp.add, total, parameters)


@functools.partial(jax.jit, donate_argnums=0)
def _quotient(total: Parameters, count: jax.Array) -> Parameters:
  return jax.tree.map(lambda leaf: leaf / count, total)
