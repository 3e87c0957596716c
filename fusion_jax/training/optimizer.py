"""From gradients to the new state: one update, and all that it is made of.

apply_update takes the gradient of the mean loss, then Adam with its schedule,
then the average of the parameters. What is frozen never reaches the optimizer.
Nothing but the step changes if the loss or the gradient is not finite.

Schedules are functions of the count of finished updates; t = count + 1 numbers
the updates from 1.
"""

import difflib
import fnmatch
import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from fusion_jax.config import ExperimentConfig, OptimizerConfig, TrainingConfig
from fusion_jax.errors import InputError, require
from fusion_jax.models.losses import LossSums
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  are_weights,
  initial_parameters,
  path_name,
)
from fusion_jax.runs.checkpoint import TrainState


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
  keep = functools.partial(optax.tree.where, finite)
  before = trained_part(state.parameters, config.freeze)
  updates, optimizer_state = optimizer.update(
    gradients, state.optimizer, before, keep=keep
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
      near = difflib.get_close_matches(pattern, names, 3, cutoff=0.0)
      raise InputError(
        f'config.training.freeze: {pattern!r} matches no parameter; the '
        f'nearest names are {", ".join(near)}'
      )
  require(
    not all(_matches(name, patterns) for name in names),
    'training.freeze',
    'matches all parameters and leaves nothing to train; take a pattern out',
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

  Gradients are first clipped by their global norm if asked for; decay and rate
  follow Adam in the order of AdamW.
  """
  parts = [_adam(config)]
  if config.clip_norm > 0:
    parts.insert(0, optax.clip_by_global_norm(config.clip_norm))
  if config.weight_decay > 0:
    parts.append(optax.add_decayed_weights(config.weight_decay, are_weights))
  schedule = make_schedule(config, width, steps)
  parts.append(optax.scale_by_learning_rate(schedule))
  if rates:
    parts.append(scale_by_name(rates))
  return optax.with_extra_args_support(optax.chain(*parts))


def last_rate(
  config: OptimizerConfig, width: int, steps: int, state: Any
) -> Float[Array, '']:
  """Return the learning rate of the last update."""
  count = optax.tree.get(state, optax.ScaleByScheduleState.__name__).count
  return make_schedule(config, width, steps)(count - 1)


def _adam(config: OptimizerConfig) -> optax.GradientTransformationExtraArgs:
  """Return an Adam that computes its update from the moments it will keep.

  Optax computes the update and the moments to keep from the old moments. XLA on
  a CPU then recomputes the new moments for the parameters, and copies all old
  ones for this in every step. Optax's own mu_dtype multiplies in bfloat16,
  where 0.9 is 0.898; here the first moment is only stored so.
  """
  b1, b2, epsilon = config.beta1, config.beta2, config.epsilon
  adam = optax.scale_by_adam(b1=b1, b2=b2, eps=epsilon)

  def with_moment_in(state, dtype):
    return state._replace(mu=optax.tree.cast(state.mu, dtype))

  def init(parameters):
    return with_moment_in(adam.init(parameters), config.moments_dtype)

  def update(updates, state, parameters=None, *, keep=None, **_):
    state = with_moment_in(state, jnp.float32)
    _, new = adam.update(updates, state, parameters)
    count, mu, nu = made_first_on_cpu(keep(new, state) if keep else new)
    updates = jax.tree.map(
      lambda m, v: m / (jnp.sqrt(v) + epsilon),
      optax.tree.bias_correction(mu, b1, count),
      optax.tree.bias_correction(nu, b2, count),
    )
    return updates, with_moment_in(new, config.moments_dtype)

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


def make_schedule(
  config: OptimizerConfig, width: int, steps: int = 0
) -> optax.Schedule:
  """Return the schedule that the config names.

  Vaswani et al. (2017), Eq. 3, and others that grow to the peak in W updates.
  The cosine is Eq. 5 of Loshchilov and Hutter (2017), without restarts.
  """
  peak, final, warmup = config.peak, config.final, config.warmup_steps

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
