"""Learning-rate schedules: functions of the count of finished updates.

t = count + 1 numbers the updates from 1. A warm-up of W updates may be a traced
number: that of a warm-up measured in target tokens, where the rate is
peak * n / N after n of N tokens. The updates that it took are then the W of the
schedule, which continues from the peak.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fusion_jax.config import OptimizerConfig

# Updates, as a number or on the device.
Count = int | Int[Array, '']


def vaswani_schedule(
  width: int, warmup_steps: Count, scale: float = 1.0
) -> optax.Schedule:
  """scale * D^-0.5 * min(t^-0.5, t * W^-1.5); Vaswani et al. (2017), Eq. 3.

  Args:
    width: D.
    warmup_steps: W, updates of linear growth.
    scale: factor on all of it.

  Returns:
    A function from the count of finished updates to the rate of the next.
  """

  def rate(count):
    t = _number(count)
    return scale * width**-0.5 * jnp.minimum(t**-0.5, t * warmup_steps**-1.5)

  return rate


def inverse_sqrt_schedule(peak: float, warmup_steps: Count) -> optax.Schedule:
  """peak * min(t / W, sqrt(W / t)).

  Args:
    peak: the rate at t = W.
    warmup_steps: W, updates of linear growth.

  Returns:
    A function from the count of finished updates to the rate of the next.
  """

  def rate(count):
    t = _number(count)
    return peak * jnp.minimum(t / warmup_steps, jnp.sqrt(warmup_steps / t))

  return rate


def cosine_schedule(
  peak: float, final: float, warmup_steps: Count, steps: int
) -> optax.Schedule:
  """peak * t / W, then final + (peak - final) (1 + cos(pi x)) / 2.

  x = (t - W) / (steps - W) goes from 0 to 1 and stays there; Loshchilov and
  Hutter (2017), Eq. 5, without restarts.

  Args:
    peak: the rate at t = W.
    final: the rate from t = steps on.
    warmup_steps: W, updates of linear growth.
    steps: of the whole schedule; if W is not below it, peak is followed by
      final.

  Returns:
    A function from the count of finished updates to the rate of the next.
  """

  def rate(count):
    t = _number(count)
    left = jnp.maximum(steps - warmup_steps, 1)
    x = jnp.clip((t - warmup_steps) / left, 0.0, 1.0)
    decayed = final + (peak - final) * 0.5 * (1 + jnp.cos(jnp.pi * x))
    return jnp.where(t < warmup_steps, peak * t / warmup_steps, decayed)

  return rate


def constant_schedule(peak: float, warmup_steps: Count) -> optax.Schedule:
  """peak * min(t / W, 1).

  Args:
    peak: the rate from t = W on.
    warmup_steps: W, updates of linear growth; 1: none.

  Returns:
    A function from the count of finished updates to the rate of the next.
  """

  def rate(count):
    return peak * jnp.minimum(_number(count) / warmup_steps, 1.0)

  return rate


def schedule_after(
  config: OptimizerConfig, width: int, steps: int, warmup_steps: Count
) -> optax.Schedule:
  """The schedule that the config names, with a warm-up of so many updates.

  Args:
    config: schedule, scale, peak, final.
    width: D of the model.
    steps: of the training.
    warmup_steps: W.

  Returns:
    A function from the count of finished updates to the rate of the next.
  """
  if config.schedule == 'vaswani':
    return vaswani_schedule(width, warmup_steps, config.scale)
  if config.schedule == 'inverse_sqrt':
    return inverse_sqrt_schedule(config.peak, warmup_steps)
  if config.schedule == 'cosine':
    return cosine_schedule(config.peak, config.final, warmup_steps, steps)
  return constant_schedule(config.peak, warmup_steps)


def _number(count: Count) -> Float[Array, '']:
  """t, float32."""
  return jnp.asarray(count, jnp.float32) + 1


class TokenWarmupState(NamedTuple):
  """How far the warm-up and the schedule are.

  count: int32 finished updates.
  tokens: int32 target tokens in them, at most N: it cannot overflow.
  warmup_steps: int32 updates of the warm-up so far, or in all.
  """

  count: Int[Array, '']
  tokens: Int[Array, '']
  warmup_steps: Int[Array, '']


def counted(
  state: TokenWarmupState, tokens: Int[Array, ''], warmup_tokens: int
) -> TokenWarmupState:
  """The state after one more update.

  Args:
    state: before it.
    tokens: int32 target tokens of its batch.
    warmup_tokens: N.

  Returns:
    The new state.
  """
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
  """The rate of the last update in a state.

  Args:
    state: after that update.
    peak: the rate at the end of the warm-up.
    warmup_tokens: N.
    after: from W to the schedule.

  Returns:
    peak * n / N during the warm-up, then that of the schedule; float32.
  """
  growing = peak * state.tokens.astype(jnp.float32) / warmup_tokens
  decayed = after(state.warmup_steps)(state.count - 1)
  return jnp.where(state.tokens < warmup_tokens, growing, decayed)


def scale_by_token_warmup(
  peak: float, warmup_tokens: int, after: Callable[[Count], optax.Schedule]
) -> optax.GradientTransformationExtraArgs:
  """Multiplies by minus the rate; updates need `tokens`, those of the batch.

  Args:
    peak: the rate at the end of the warm-up.
    warmup_tokens: N, target tokens.
    after: from W to the schedule.

  Returns:
    The transformation, with a `TokenWarmupState`.
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
