import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fusion_jax.config import OptimizerConfig
from fusion_jax.testing import assert_close
from fusion_jax.training.optimizer import (
  last_rate,
  make_optimizer,
  make_schedule,
)


def test_adam_by_hand():
  # Kingma and Ba (2015), Algorithm 1, first two updates for gradients 1, 2.
  config = OptimizerConfig(
    schedule='inverse_sqrt', peak=0.1, warmup_steps=1, beta1=0.9, beta2=0.98
  )
  optimizer = make_optimizer(config, 1)
  x = jnp.array([0.0])
  state, expected = optimizer.init(x), 0.0
  m = v = 0.0
  for t, gradient in enumerate((1.0, 2.0), start=1):
    updates, state = optimizer.update(jnp.array([gradient]), state, x)
    x = optax.apply_updates(x, updates)
    m, v = 0.9 * m + 0.1 * gradient, 0.98 * v + 0.02 * gradient**2
    rate = 0.1 / np.sqrt(t)
    expected -= rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.98**t)) + 1e-9)
    assert float(x[0]) == pytest.approx(expected, rel=1e-5)


def test_updates_and_moments_are_those_of_optax():
  config = OptimizerConfig(schedule='constant', peak=1.0, warmup_steps=1)
  ours = make_optimizer(config, 1)
  theirs = optax.adam(1.0, config.beta1, config.beta2, config.epsilon)
  x = {'a': jnp.zeros((2, 3)), 'b': jnp.zeros(5)}
  states = [ours.init(x), theirs.init(x)]
  random = np.random.default_rng(0)
  for _ in range(4):
    gradients = jax.tree.map(
      lambda leaf: jnp.float32(random.normal(size=leaf.shape)), x
    )
    (updates, states[0]), (expected, states[1]) = (
      each.update(gradients, state, x)
      for each, state in zip((ours, theirs), states, strict=True)
    )
    assert_close(updates, expected, units=16)
  adam, expected = (
    optax.tree.get(state, 'ScaleByAdamState') for state in states
  )
  chex.assert_trees_all_equal(adam, expected)


def test_clipping_bounds_the_global_norm():
  config = OptimizerConfig(clip_norm=1.0, beta1=0.0, beta2=0.0, epsilon=1e9)
  optimizer = make_optimizer(config, 1)
  gradients = {'a': jnp.array([3.0]), 'b': jnp.array([4.0])}
  updates, _ = optimizer.update(gradients, optimizer.init(gradients), gradients)
  # A huge epsilon makes Adam linear: updates are clipped gradients, scaled.
  ratio = float(updates['a'][0] / updates['b'][0])
  assert ratio == pytest.approx(0.75, rel=1e-5)
  rate = float(make_schedule(config, 1)(0))
  assert float(updates['b'][0]) == pytest.approx(-rate * 0.8 / 1e9, rel=1e-4)


def _updates(config, gradients, start):
  """Parameter values after each update, and the last state."""
  optimizer = make_optimizer(config, 1, steps=100)
  x, values = jnp.array([start]), []
  state = optimizer.init(x)
  for gradient in gradients:
    updates, state = optimizer.update(jnp.array([gradient]), state, x)
    x = optax.apply_updates(x, updates)
    values.append(float(x[0]))
  return values, state


def test_decay_is_decoupled_from_the_gradient():
  # x <- x - rate * (m / (sqrt(v) + epsilon) + decay * x): Loshchilov and
  # Hutter (2019), Algorithm 2. The first Adam step is the gradient's sign.
  config = OptimizerConfig(
    schedule='constant', peak=0.1, warmup_steps=1, weight_decay=0.5
  )
  optimizer = make_optimizer(config, 1)
  x = {'kernel': jnp.array([2.0]), 'bias': jnp.array([2.0])}
  gradients = {'kernel': jnp.array([3.0]), 'bias': jnp.array([-7.0])}
  updates, _ = optimizer.update(gradients, optimizer.init(x), x)
  kernel, bias = -0.1 * (1 + 0.5 * 2), 0.1
  expected = {'kernel': jnp.array([kernel]), 'bias': jnp.array([bias])}
  assert_close(updates, expected)


def test_the_first_moment_is_kept_in_bfloat16():
  config = OptimizerConfig(
    schedule='constant', peak=0.1, warmup_steps=1, moments_dtype='bfloat16'
  )
  # 0.1 * 1.01 = 0.101 in float32, of which bfloat16 keeps 8 bits.
  _, state = _updates(config, [1.01], 0.0)
  adam = optax.tree.get(state, 'ScaleByAdamState')
  assert adam.mu.dtype == jnp.bfloat16
  assert adam.nu.dtype == jnp.float32
  assert float(adam.mu[0]) == float(jnp.bfloat16(0.101)) != pytest.approx(0.101)
  # By hand: m1 = 0.1 * 1.01 rounded, m2 = 0.9 m1 + 0.1 * 2 not rounded.
  second = 0.9 * float(jnp.bfloat16(0.101)) + 0.1 * 2
  v = 0.98 * 0.02 * 1.01**2 + 0.02 * 2**2
  step = (second / (1 - 0.9**2)) / np.sqrt(v / (1 - 0.98**2))
  values, _ = _updates(config, [1.01, 2.0], 0.0)
  assert values[1] - values[0] == pytest.approx(-0.1 * step, rel=1e-4)


def test_the_state_without_new_options_is_that_of_earlier_checkpoints():
  x = {'kernel': jnp.ones((2, 2)), 'bias': jnp.ones(2)}
  plain = optax.adam(lambda count: 1.0)
  chex.assert_trees_all_equal_structs(
    make_optimizer(OptimizerConfig(), 16).init(x), plain.init(x)
  )
  clipped = optax.chain(optax.clip_by_global_norm(1.0), plain)
  chex.assert_trees_all_equal_structs(
    make_optimizer(OptimizerConfig(clip_norm=1.0), 16).init(x), clipped.init(x)
  )


@pytest.mark.parametrize('freeze', [(), ('bias',)])
@pytest.mark.parametrize(
  'schedule', ['vaswani', 'inverse_sqrt', 'cosine', 'constant']
)
def test_the_rate_that_is_told_is_the_rate_that_was_used(schedule, freeze):
  config = OptimizerConfig(
    schedule=schedule, warmup_steps=3, weight_decay=0.1, clip_norm=9.0
  )
  optimizer = make_optimizer(config, 16, 6, freeze)
  rate = make_schedule(config, 16, 6)
  x = {'kernel': jnp.ones(1), 'bias': jnp.ones(1)}
  state = optimizer.init(x)
  for count in range(6):
    _, state = optimizer.update(x, state, x, tokens=jnp.int32(5))
    assert float(last_rate(config, 16, 6, state)) == float(rate(count))
