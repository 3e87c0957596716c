"""What follows the gradients of a step, as pure functions.

The gradient of the mean loss, then Adam, then the average of the parameters;
and none of it if the loss or the gradient is not finite.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from fusion_jax.config import TrainingConfig
from fusion_jax.models.losses import LossSums
from fusion_jax.models.transformer import Parameters
from fusion_jax.runs.state import TrainState
from fusion_jax.training.freeze import without_frozen


class Applied(NamedTuple):
  """What an update saw.

  gradients: of the mean loss per target token; 0 for frozen parameters.
  norm: their global norm, before clipping.
  finite: whether loss and norm are, and so whether the update was made.
  """

  gradients: Parameters
  norm: Float[Array, '']
  finite: Bool[Array, '']


def apply_update(
  state: TrainState,
  gradients: Parameters,
  sums: LossSums,
  optimizer: optax.GradientTransformationExtraArgs,
  config: TrainingConfig,
) -> tuple[TrainState, Applied]:
  """One update of the state.

  Args:
    state: before it.
    gradients: float32, of the loss summed over the whole batch.
    sums: of the whole batch.
    optimizer: of `make_optimizer`.
    config: what is frozen, and the decay of the average.

  Returns:
    The new state, which is the old one but for `step` if the loss or the
    gradient is not finite; and what the update saw.
  """
  if config.freeze:
    gradients = without_frozen(gradients, config.freeze)
  scale = 1.0 / jnp.maximum(sums.tokens, 1)
  gradients = jax.tree.map(lambda g: g * scale, gradients)
  norm = optax.tree.norm(gradients)
  finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)
  updates, optimizer_state = optimizer.update(
    gradients,
    state.optimizer,
    state.parameters,
    tokens=sums.tokens,
    finite=finite,
  )
  parameters = optax.apply_updates(state.parameters, updates)
  average = state.average
  if average is not None:
    # Of what is kept, as in the optimizer: so nothing old is copied.
    now = where(finite, parameters, state.parameters)
    now = jax.lax.optimization_barrier(now)
    average = moved_average(average, now, config.ema)
  new = TrainState(state.step, parameters, optimizer_state, average)
  kept = where(finite, new, state)
  applied = Applied(gradients, norm, finite)
  return kept._replace(step=state.step + 1), applied


def moved_average(
  average: Parameters, parameters: Parameters, decay: float
) -> Parameters:
  """a + (1 - d) (p - a), for every parameter p and its average a.

  Args:
    average: of the updates before.
    parameters: after this update.
    decay: d, in [0, 1).

  Returns:
    The new average.
  """
  return jax.tree.map(
    lambda a, p: a + (1 - decay) * (p - a), average, parameters
  )


def where(condition: Bool[Array, ''] | bool, yes: Any, no: Any) -> Any:
  """One of two trees."""
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
