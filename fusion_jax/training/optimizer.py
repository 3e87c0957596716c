"""Adam as configured: clipping, decay, frozen parameters and learning rate."""

import types
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fusion_jax.config import OptimizerConfig
from fusion_jax.models.parameter_kinds import are_weights
from fusion_jax.training.freeze import train_others
from fusion_jax.training.fusion_rate import scale_by_name
from fusion_jax.training.schedules import (
  Count,
  TokenWarmupState,
  scale_by_token_warmup,
  schedule_after,
  token_warmup_rate,
)
from fusion_jax.training.update import made_first_on_cpu, where


def make_schedule(
  config: OptimizerConfig, width: int, steps: int = 0
) -> optax.Schedule:
  """Return the schedule that the config names, with its warm-up by steps."""
  return schedule_after(config, width, steps, config.warmup_steps)


def make_optimizer(
  config: OptimizerConfig,
  width: int,
  steps: int = 0,
  freeze: Sequence[str] = (),
  rates: Mapping[str, float] = types.MappingProxyType({}),
) -> optax.GradientTransformationExtraArgs:
  """Return Adam (Kingma and Ba 2015) with the options of the config.

  Gradients are first clipped by their global norm if asked for.
  """
  optimizer = _adam(config, width, steps)
  if config.clip_norm > 0:
    clip = optax.clip_by_global_norm(config.clip_norm)
    optimizer = optax.chain(clip, optimizer)
  if rates:
    optimizer = optax.chain(optimizer, scale_by_name(rates))
  if freeze:
    optimizer = train_others(optimizer, freeze)
  return optax.with_extra_args_support(optimizer)


def last_rate(
  config: OptimizerConfig, width: int, steps: int, state: Any
) -> Float[Array, '']:
  """Return the learning rate of the last update."""
  if config.warmup_tokens:
    return token_warmup_rate(
      optax.tree.get(state, TokenWarmupState.__name__),
      *_warmup(config, width, steps),
    )
  count = optax.tree.get(state, optax.ScaleByScheduleState.__name__).count
  return make_schedule(config, width, steps)(count - 1)


def _adam(
  config: OptimizerConfig, width: int, steps: int
) -> optax.GradientTransformation:
  """Return m / (sqrt(v) + epsilon), decay and rate, in the order of AdamW."""
  adam = _in_place(config)
  if config.moments_dtype == 'bfloat16':
    adam = _kept_in_bfloat16(adam)
  parts = [adam]
  if config.weight_decay > 0:
    decay = optax.add_decayed_weights(config.weight_decay, are_weights)
    parts.append(decay)
  if config.warmup_tokens:
    parts.append(scale_by_token_warmup(*_warmup(config, width, steps)))
  else:
    schedule = make_schedule(config, width, steps)
    parts.append(optax.scale_by_learning_rate(schedule))
  return optax.chain(*parts)


def _in_place(
  config: OptimizerConfig,
) -> optax.GradientTransformationExtraArgs:
  """Return an Adam that computes its update from the moments it will keep.

  Optax computes the update and the moments to keep from the old moments. XLA on
  a CPU then recomputes the new moments for the parameters, and copies all old
  ones for this in every step.
  """
  b1, b2, epsilon = config.beta1, config.beta2, config.epsilon
  adam = optax.scale_by_adam(b1=b1, b2=b2, eps=epsilon)

  def update(updates, state, parameters=None, *, finite=True, **_):
    _, new = adam.update(updates, state, parameters)
    kept = where(finite, new, state)
    count, mu, nu = made_first_on_cpu(kept)
    updates = jax.tree.map(
      lambda m, v: m / (jnp.sqrt(v) + epsilon),
      optax.tree.bias_correction(mu, b1, count),
      optax.tree.bias_correction(nu, b2, count),
    )
    return updates, new

  return optax.GradientTransformationExtraArgs(adam.init, update)


def _kept_in_bfloat16(
  adam: optax.GradientTransformationExtraArgs,
) -> optax.GradientTransformationExtraArgs:
  """Store the first moment of Adam in bfloat16 between two updates.

  Optax's own mu_dtype multiplies in bfloat16, where 0.9 is 0.898.
  """

  def stored(state):
    return state._replace(mu=optax.tree.cast(state.mu, jnp.bfloat16))

  def init(parameters):
    return stored(adam.init(parameters))

  def update(updates, state, parameters=None, **others):
    state = state._replace(mu=optax.tree.cast(state.mu, jnp.float32))
    updates, state = adam.update(updates, state, parameters, **others)
    return updates, stored(state)

  return optax.GradientTransformationExtraArgs(init, update)


def _warmup(config: OptimizerConfig, width: int, steps: int) -> tuple[Any, ...]:
  """Return the arguments of a warm-up by tokens: peak, tokens and `after`."""

  def after(warmup_steps: Count) -> optax.Schedule:
    return schedule_after(config, width, steps, warmup_steps)

  return config.peak, config.warmup_tokens, after
