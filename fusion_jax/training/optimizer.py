"""From gradients to the new state: one update, and all that it is made of.

apply_update takes the gradient of the mean loss, then Adam with its schedule,
then the average of the parameters. What is frozen never reaches the optimizer.
Nothing but the step changes if the loss or the gradient is not finite.

Schedules are functions of the count of finished updates; t = count + 1 numbers
the updates from 1. The number W of warm-up updates may be traced. It is traced
for a warm-up that is measured in target tokens, where the rate is peak * n / N
after n of N tokens. The number of updates that this warm-up took is then the W
of the schedule, which continues from the peak.
"""

import difflib
import fnmatch
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from fusion_jax.config import ExperimentConfig, OptimizerConfig, TrainingConfig
from fusion_jax.errors import InputError
from fusion_jax.models.losses import LossSums
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  are_weights,
  initial_parameters,
  path_name,
)
from fusion_jax.runs.checkpoint import TrainState

# Largest number of names in a message.
_LISTED = 3


class Applied(NamedTuple):
  """What an update saw, before clipping; it was made if that is finite."""

  gradients: Parameters  # Of the mean loss per target token; 0 where frozen.
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
  scale = 1.0 / jnp.maximum(sums.tokens, 1)
  gradients = jax.tree.map(
    lambda g: g * scale, trained_part(gradients, config.freeze)
  )
  norm = optax.tree.norm(gradients)
  finite = jnp.isfinite(sums.loss) & jnp.isfinite(norm)

  def keep(new: Any, old: Any) -> Any:
    return where(finite, new, old)

  before = trained_part(state.parameters, config.freeze)
  updates, optimizer_state = optimizer.update(
    gradients, state.optimizer, before, tokens=sums.tokens, keep=keep
  )
  trained = keep(optax.apply_updates(before, updates), before)
  parameters = _whole(trained, state.parameters)
  average = state.average
  if average is not None:
    new = made_first_on_cpu(parameters)
    average = keep(moved_average(average, new, config.ema), average)
  new_state = TrainState(
    state.step + 1, parameters, keep(optimizer_state, state.optimizer), average
  )
  zeros = jax.tree.map(jnp.zeros_like, state.parameters)
  return new_state, Applied(_whole(gradients, zeros), norm, finite)


def where(condition: Bool[Array, ''], yes: Any, no: Any) -> Any:
  """Return one of two trees."""
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


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


def trained_part(tree: Parameters, frozen: Sequence[str]) -> Parameters:
  """Return a tree with an empty node in place of what is frozen.

  Patterns of names say what is. Optimizers and norms skip empty nodes, and XLA
  drops the gradients that nobody reads.
  """
  if not frozen:
    return tree
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: (
      optax.MaskedNode() if _matches(path_name(path), frozen) else leaf
    ),
    tree,
  )


def _whole(part: Parameters, instead: Parameters) -> Parameters:
  """Return a tree whose empty nodes are filled from another."""
  return jax.tree.map(
    lambda other, leaf: other if isinstance(leaf, optax.MaskedNode) else leaf,
    instead,
    part,
  )


def check_freeze(parameters: Parameters, patterns: Sequence[str]) -> None:
  """Refuse patterns that match no parameter or leave none to train."""
  leaves = jax.tree_util.tree_leaves_with_path(parameters)
  names = [path_name(path) for path, _ in leaves]
  for pattern in patterns:
    if not fnmatch.filter(names, pattern):
      close = difflib.get_close_matches(pattern, names, _LISTED, cutoff=0.0)
      raise InputError(
        f'config.training.freeze: {pattern!r} matches no parameter; the '
        f'nearest names are {", ".join(close)}'
      )
  if all(_matches(name, patterns) for name in names):
    raise InputError(
      'config.training.freeze: matches all parameters and leaves nothing to '
      'train; take a pattern out'
    )


def _matches(name: str, patterns: Sequence[str]) -> bool:
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def optimizer_for(
  config: ExperimentConfig, model: Transformer
) -> optax.GradientTransformationExtraArgs:
  """Return the optimizer of an experiment."""
  return make_optimizer(
    config.optimizer,
    config.model.width,
    config.training.steps,
    fusion_rates(model, config.optimizer),
  )


def make_optimizer(
  config: OptimizerConfig,
  width: int,
  steps: int = 0,
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
  return optax.with_extra_args_support(optimizer)


def last_rate(
  config: OptimizerConfig, width: int, steps: int, state: Any
) -> Float[Array, '']:
  """Return the learning rate of the last update."""
  if config.warmup_tokens:
    warmup = optax.tree.get(state, TokenWarmupState.__name__)
    return token_warmup_rate(warmup, config, width, steps)
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
    parts.append(scale_by_token_warmup(config, width, steps))
  else:
    schedule = make_schedule(config, width, steps)
    parts.append(optax.scale_by_learning_rate(schedule))
  return optax.chain(*parts)


def _in_place(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
  """Return an Adam that computes its update from the moments it will keep.

  Optax computes the update and the moments to keep from the old moments. XLA on
  a CPU then recomputes the new moments for the parameters, and copies all old
  ones for this in every step.
  """
  b1, b2, epsilon = config.beta1, config.beta2, config.epsilon
  adam = optax.scale_by_adam(b1=b1, b2=b2, eps=epsilon)

  def update(updates, state, parameters=None, *, keep=None, **_):
    _, new = adam.update(updates, state, parameters)
    count, mu, nu = made_first_on_cpu(keep(new, state) if keep else new)
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


def fusion_rates(
  model: Transformer, config: OptimizerConfig
) -> dict[str, float]:
  """Return the factors on the learning rate of the fusion's parameters.

  Those are the parameters that the same model without fusion lacks.
  """
  sides = {'encoder': model.config.encoder, 'decoder': model.config.decoder}
  rates = {
    name: config.fusion_rate or (side.scheme.rate if side.scheme else 1.0)
    for name, side in sides.items()
  }
  if set(rates.values()) == {1.0}:
    return {}
  plain = model.clone(config=model.config.without_fusion)
  new = _names(model) - _names(plain)
  # The layer embedding belongs to both sides.
  shared = min(rates.values())
  return {name: rates.get(name.partition('/')[0], shared) for name in new}


def scale_by_name(rates: Mapping[str, float]) -> optax.GradientTransformation:
  """Return a transformation that multiplies the updates by their factors."""

  def scaled(path, update):
    return update * rates.get(path_name(path), 1.0)

  return optax.stateless(
    lambda updates, _: jax.tree_util.tree_map_with_path(scaled, updates)
  )


def _names(model: Transformer) -> set[str]:
  shapes = jax.eval_shape(lambda: initial_parameters(model, 0))
  leaves = jax.tree_util.tree_leaves_with_path(shapes)
  return {path_name(path) for path, _ in leaves}


# A number of updates, as a Python integer or on the device.
Count = int | Int[Array, '']


def make_schedule(
  config: OptimizerConfig,
  width: int,
  steps: int = 0,
  warmup_steps: Count | None = None,
) -> optax.Schedule:
  """Return the schedule that the config names, or with another warm-up W.

  Vaswani et al. (2017), Eq. 3, and others that grow to the peak in W updates.
  The cosine is Eq. 5 of Loshchilov and Hutter (2017), without restarts.
  """
  warmup = config.warmup_steps if warmup_steps is None else warmup_steps
  peak, final = config.peak, config.final

  def vaswani(t):
    lower = jnp.minimum(t**-0.5, t * warmup**-1.5)
    return config.scale * width**-0.5 * lower

  def inverse_sqrt(t):
    return peak * jnp.minimum(t / warmup, jnp.sqrt(warmup / t))

  def cosine(t):
    left = jnp.maximum(steps - warmup, 1)
    x = jnp.clip((t - warmup) / left, 0.0, 1.0)
    decayed = final + (peak - final) * 0.5 * (1 + jnp.cos(jnp.pi * x))
    return jnp.where(t < warmup, peak * t / warmup, decayed)

  def constant(t):
    return peak * jnp.minimum(t / warmup, 1.0)

  rate = {
    'vaswani': vaswani,
    'inverse_sqrt': inverse_sqrt,
    'cosine': cosine,
    'constant': constant,
  }[config.schedule]
  return lambda count: rate(jnp.asarray(count, jnp.float32) + 1)


class TokenWarmupState(NamedTuple):
  """Progress of the warm-up, int32, and of the schedule.

  Attributes:
    count: Number of finished updates.
    tokens: Number of target tokens in them, at most N so that it cannot
      overflow.
    warmup_steps: Number of updates of the warm-up so far, or in all.
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
  state: TokenWarmupState, config: OptimizerConfig, width: int, steps: int
) -> Float[Array, '']:
  """Return the rate of the last update."""
  tokens = state.tokens.astype(jnp.float32)
  growing = config.peak * tokens / config.warmup_tokens
  schedule = make_schedule(config, width, steps, state.warmup_steps)
  decayed = schedule(state.count - 1)
  return jnp.where(state.tokens < config.warmup_tokens, growing, decayed)


def scale_by_token_warmup(
  config: OptimizerConfig, width: int, steps: int
) -> optax.GradientTransformationExtraArgs:
  """Return a transformation that multiplies updates by minus the rate.

  Its updates need the argument `tokens`, the target tokens of the batch.
  """

  def init(parameters):
    del parameters
    return TokenWarmupState(*(jnp.zeros((), jnp.int32) for _ in range(3)))

  def update(updates, state, parameters=None, *, tokens, **others):
    del parameters, others
    state = counted(state, tokens, config.warmup_tokens)
    rate = token_warmup_rate(state, config, width, steps)
    return jax.tree.map(lambda leaf: -rate * leaf, updates), state

  return optax.GradientTransformationExtraArgs(init, update)
