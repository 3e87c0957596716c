"""The training state, which an update changes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from fusion_jax.models.transformer import Parameters


class TrainState(NamedTuple):
  """State that an update changes; the arrays of a checkpoint are exactly these.

  Attributes:
    step: Number of batches seen, int32, including those whose update was
      skipped.
    parameters: Parameters, float32.
    optimizer: State of the Optax optimizer.
    average: Moving average of the parameters, float32; None: none is kept.
  """

  step: Int[Array, '']
  parameters: Parameters
  optimizer: optax.OptState
  average: Parameters | None = None

  @property
  def evaluated(self) -> Parameters:
    """The parameters for validation and decoding: the average if it exists."""
    return self.parameters if self.average is None else self.average

  def started_at(self, parameters: Parameters) -> 'TrainState':
    """Return the state with other parameters, which also start the average."""
    if self.average is None:
      return self._replace(parameters=parameters)
    average = copied(parameters)
    return self._replace(parameters=parameters, average=average)


def copied(parameters: Parameters) -> Parameters:
  """Copy all arrays, because a donated array must not occur twice."""
  return jax.tree.map(jnp.copy, parameters)
