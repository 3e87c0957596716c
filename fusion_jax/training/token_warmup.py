"""A warm-up that is measured in target tokens, as an Optax transformation.

While it lasts the rate is peak * n / N after n of N tokens. The updates that it
took are then the W of the schedule, which goes on from the peak.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from fusion_jax.training.schedules import Count


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
