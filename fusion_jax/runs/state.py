"""What an update changes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from fusion_jax.models.transformer import Parameters


class TrainState(NamedTuple):
  """What an update changes; the checkpoint holds just this.

  step: int32 batches seen, those whose update was left out included.
  parameters: float32.
  optimizer: Optax's state.
  average: float32, the moving average of the parameters; None: none is kept.
  """

  step: Int[Array, '']
  parameters: Parameters
  optimizer: optax.OptState
  average: Parameters | None = None

  @property
  def evaluated(self) -> Parameters:
    """What validation and decoding read: the average, if there is one."""
    return self.parameters if self.average is None else self.average

  def started_at(self, parameters: Parameters) -> 'TrainState':
    """The state with other parameters, where the average starts too."""
    if self.average is None:
      return self._replace(parameters=parameters)
    average = copied(parameters)
    return self._replace(parameters=parameters, average=average)


def copied(parameters: Parameters) -> Parameters:
  """Arrays of their own: what is donated must not be there twice."""
  return jax.tree.map(jnp.copy, parameters)
