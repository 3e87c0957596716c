"""The update after the gradients of a step, as pure functions.

It takes the gradient of the mean loss, then Adam, then the average of the
parameters. Nothing changes if the loss or the gradient is not finite.
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
  """Values that an update saw.

  Attributes:
    gradients: Gradients of the mean loss per target token; 0 for frozen
      parameters.
    norm: Global norm of the gradients, before clipping.
    finite: Whether loss and norm are finite, and so whether the update was
      made.
  """

  gradients: Parameters
  norm: Float[Array, '']
  finite: Bool[Array, '']


@jax.named_scope('optimizer')
def apply_update(
  state: TrainState,
  gradients: Parameters,
  sums: LossSums,
  optimizer: optax.GradientTransformationExtraArgs,
  config: TrainingConfig,
) -> tuple[TrainState, Applied]:
  """Update the state once."""
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
    # Averages what is kept, as the optimizer does, so that nothing old is
    # copied.
    now = where(finite, parameters, state.parameters)
    average = moved_average(average, made_first_on_cpu(now), config.ema)
  new = TrainState(state.step, parameters, optimizer_state, average)
  kept = where(finite, new, state)
  applied = Applied(gradients, norm, finite)
  return kept._replace(step=state.step + 1), applied


def moved_average(
  average: Parameters, parameters: Parameters, decay: float
) -> Parameters:
  """Return a + (1 - d) (p - a), for every parameter p and its average a."""
  return jax.tree.map(
    lambda a, p: a + (1 - decay) * (p - a), average, parameters
  )


def made_first_on_cpu(tree: Any) -> Any:
  """Return a tree; XLA on a CPU computes it before what reads it.

  It would otherwise compute it again for every reader, from old arrays that it
  has to copy. Other backends write what is computed and what reads it in one
  pass.
  """
  return jax.lax.platform_dependent(
    tree, cpu=jax.lax.optimization_barrier, default=lambda same: same
  )


def where(condition: Bool[Array, ''] | bool, yes: Any, no: Any) -> Any:
  """Return one of two trees."""
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
