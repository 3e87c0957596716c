"""Adam and the learning-rate schedules, from the config."""

import jax.numpy as jnp
import optax

from fusion_jax.config import OptimizerConfig


def vaswani_schedule(
  width: int, warmup_steps: int, scale: float = 1.0
) -> optax.Schedule:
  """scale * D^-0.5 * min(t^-0.5, t * warmup^-1.5).

  Vaswani et al. (2017), Eq. 3, with t counted from 1.

  Args:
    width: D.
    warmup_steps: steps of linear growth.
    scale: factor on all of it.

  Returns:
    A function from the count of finished updates to the rate of the next.
  """

  def rate(count):
    t = jnp.asarray(count, jnp.float32) + 1
    return scale * width**-0.5 * jnp.minimum(t**-0.5, t * warmup_steps**-1.5)

  return rate


def inverse_sqrt_schedule(peak: float, warmup_steps: int) -> optax.Schedule:
  """peak * min(t / warmup, sqrt(warmup / t)), with t counted from 1.

  Args:
    peak: the rate at t = warmup_steps.
    warmup_steps: steps of linear growth.

  Returns:
    A function from the count of finished updates to the rate of the next.
  """

  def rate(count):
    t = jnp.asarray(count, jnp.float32) + 1
    return peak * jnp.minimum(t / warmup_steps, jnp.sqrt(warmup_steps / t))

  return rate


def make_schedule(config: OptimizerConfig, width: int) -> optax.Schedule:
  """The schedule that the config names, for a model of that width."""
  if config.schedule == 'vaswani':
    return vaswani_schedule(width, config.warmup_steps, config.scale)
  return inverse_sqrt_schedule(config.peak, config.warmup_steps)


def make_optimizer(
  config: OptimizerConfig, width: int
) -> optax.GradientTransformation:
  """Adam (Kingma and Ba 2015), after clipping by global norm if asked for."""
  adam = optax.adam(
    make_schedule(config, width),
    b1=config.beta1,
    b2=config.beta2,
    eps=config.epsilon,
  )
  if config.clip_norm == 0:
    return adam
  return optax.chain(optax.clip_by_global_norm(config.clip_norm), adam)
