"""Learning-rate schedules: functions of the count of finished updates.

t = count + 1 numbers the updates from 1. The number W of warm-up updates may be
traced. It is traced for a warm-up that is measured in target tokens, where the
rate is peak * n / N after n of N tokens. The number of updates that this
warm-up took is then the W of the schedule, which continues from the peak.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fusion_jax.config import OptimizerConfig

# A number of updates, as a Python integer or on the device.
Count = int | Int[Array, '']


def vaswani_schedule(
  width: int, warmup_steps: Count, scale: float = 1.0
) -> optax.Schedule:
  """Return the schedule of Vaswani et al. (2017), Eq. 3.

  The rate is scale * D^-0.5 * min(t^-0.5, t * W^-1.5).
  """

  def rate(count):
    t = _number(count)
    return scale * width**-0.5 * jnp.minimum(t**-0.5, t * warmup_steps**-1.5)

  return rate


def inverse_sqrt_schedule(peak: float, warmup_steps: Count) -> optax.Schedule:
  """Return the schedule peak * min(t / W, sqrt(W / t))."""

  def rate(count):
    t = _number(count)
    return peak * jnp.minimum(t / warmup_steps, jnp.sqrt(warmup_steps / t))

  return rate


def cosine_schedule(
  peak: float, final: float, warmup_steps: Count, steps: int
) -> optax.Schedule:
  """Return a schedule of linear growth to the peak and cosine decay.

  The rate is peak * t / W, then final + (peak - final) (1 + cos(pi x)) / 2,
  where x = (t - W) / (steps - W) goes from 0 to 1 and stays there; Loshchilov
  and Hutter (2017), Eq. 5, without restarts.
  """

  def rate(count):
    t = _number(count)
    left = jnp.maximum(steps - warmup_steps, 1)
    x = jnp.clip((t - warmup_steps) / left, 0.0, 1.0)
    decayed = final + (peak - final) * 0.5 * (1 + jnp.cos(jnp.pi * x))
    return jnp.where(t < warmup_steps, peak * t / warmup_steps, decayed)

  return rate


def constant_schedule(peak: float, warmup_steps: Count) -> optax.Schedule:
  """Return the schedule peak * min(t / W, 1)."""

  def rate(count):
    return peak * jnp.minimum(_number(count) / warmup_steps, 1.0)

  return rate


def schedule_after(
  config: OptimizerConfig, width: int, steps: int, warmup_steps: Count
) -> optax.Schedule:
  """Return the schedule that the config names, with a warm-up of W updates."""
  if config.schedule == 'vaswani':
    return vaswani_schedule(width, warmup_steps, config.scale)
  if config.schedule == 'inverse_sqrt':
    return inverse_sqrt_schedule(config.peak, warmup_steps)
  if config.schedule == 'cosine':
    return cosine_schedule(config.peak, config.final, warmup_steps, steps)
  return constant_schedule(config.peak, warmup_steps)


def _number(count: Count) -> Float[Array, '']:
  """Return t, float32."""
  return jnp.asarray(count, jnp.float32) + 1


class TokenWarmupState(NamedTuple):
  """Progress of the warm-up and of the schedule.

  Attributes:
    count: Number of finished updates, int32.
    tokens: Number of target tokens in them, int32, at most N so that it cannot
      overflow.
    warmup_steps: Number of updates of the warm-up so far, or in all if it has
      ended; int32.
  """

  count: Int[Array, '']  # type: ignore[assignment]
  tokens: Int[Array, '']
  warmup_steps: Int[Array, '']


def counted(
  state: TokenWarmupState, tokens: Int[Array, ''], warmup_tokens: int
) -> TokenWarmupState:
  """Return the state after one more update."""
  left = warmup_tokens - state.tokens
  return TokenWarmupState(
    state.count + 1,
    state.tokens + jnp.minimum(tokens, left),
    state.warmup_steps + (left > 0),
  )


def token_warmup_rate(
  state: TokenWarmupState,
  peak: float,
  warmup_tokens: int,
  after: Callable[[Count], optax.Schedule],
) -> Float[Array, '']:
  """Return the rate of the last update."""
  growing = peak * state.tokens.astype(jnp.float32) / warmup_tokens
  decayed = after(state.warmup_steps)(state.count - 1)
  return jnp.where(state.tokens < warmup_tokens, growing, decayed)


def scale_by_token_warmup(
  peak: float, warmup_tokens: int, after: Callable[[Count], optax.Schedule]
) -> optax.GradientTransformationExtraArgs:
  """Return a transformation that multiplies updates by minus the rate.

  Its updates need the argument `tokens`, the target tokens of the batch.
  """

  def init(parameters):
    del parameters
    return TokenWarmupState(*(jnp.zeros((), jnp.int32) for _ in range(3)))

  def update(updates, state, parameters=None, *, tokens, **others):
    del parameters, others
    state = counted(state, tokens, warmup_tokens)
    rate = token_warmup_rate(state, peak, warmup_tokens, after)
    return jax.tree.map(lambda leaf: -rate * leaf, updates), state

  return optax.GradientTransformationExtraArgs(init, update)
