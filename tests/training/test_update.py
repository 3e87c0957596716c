"""One update of a small tree: its average, and what is skipped."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_jax.config import OptimizerConfig, TrainingConfig
from fusion_jax.errors import InputError
from fusion_jax.models.losses import LossSums
from fusion_jax.runs.state import TrainState
from fusion_jax.testing import assert_close
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.update import apply_update, moved_average

_OPTIMIZER = make_optimizer(
  OptimizerConfig(
    schedule='inverse_sqrt', peak=0.1, warmup_tokens=50, weight_decay=0.1
  ),
  1,
)
_CONFIG = TrainingConfig(ema=0.75)
_SUM_DTYPES = jnp.float32, jnp.float32, jnp.int32, jnp.int32


def _state(ema=True):
  parameters = {'kernel': jnp.array([1.0, -2.0]), 'bias': jnp.array([3.0])}
  average = jax.tree.map(jnp.copy, parameters) if ema else None
  return TrainState(
    jnp.int32(0), parameters, _OPTIMIZER.init(parameters), average
  )


def _apply(state, gradient=1.0, loss=2.0, tokens=4):
  gradients = jax.tree.map(
    lambda x: jnp.full_like(x, gradient), state.parameters
  )
  sums = LossSums(
    jnp.float32(loss), jnp.float32(loss), jnp.int32(0), jnp.int32(tokens)
  )
  return apply_update(state, gradients, sums, _OPTIMIZER, _CONFIG)


def test_the_gradient_is_that_of_the_mean_per_token():
  _, applied = _apply(_state(), gradient=8.0)
  assert bool(applied.finite)
  # 8 / 4 tokens in each of three places.
  np.testing.assert_allclose(applied.gradients['kernel'], [2.0, 2.0])
  assert float(applied.norm) == pytest.approx(2 * 3**0.5)


def test_the_average_starts_at_the_parameters_and_follows_by_hand():
  state = _state()
  average = np.array([1.0, -2.0])
  for _ in range(4):
    state, _ = _apply(state)
    average = 0.75 * average + 0.25 * np.asarray(state.parameters['kernel'])
    assert_close(state.average['kernel'], average, units=16)
  assert not np.allclose(average, state.parameters['kernel'])
  assert state.evaluated is state.average
  assert _state(ema=False).evaluated['kernel'].tolist() == [1.0, -2.0]


@given(st.floats(-1e3, 1e3, width=32), st.sampled_from([0.5, 0.9, 0.999]))
def test_an_average_of_what_stays_is_exact(value, decay):
  one = {'a': jnp.float32(value)}
  assert moved_average(one, one, decay)['a'] == one['a']


def test_no_average_is_kept_without_one():
  new, _ = _apply(_state(ema=False))
  assert new.average is None


@pytest.mark.parametrize(
  'broken',
  [
    {'loss': np.nan},
    {'loss': np.inf},
    {'gradient': np.nan},
    {'gradient': -np.inf},
    # Finite, but its square is not: 1e20^2 > 3.4e38.
    {'gradient': 1e21},
  ],
)
def test_a_bad_update_changes_nothing_but_the_step(broken):
  good, _ = _apply(_state())
  skipped, applied = _apply(good, **broken)
  assert not bool(applied.finite)
  assert int(skipped.step) == 2
  chex.assert_trees_all_equal(skipped[1:], good[1:])
  resumed, _ = _apply(skipped)
  straight, _ = _apply(good)
  chex.assert_trees_all_equal(resumed[1:], straight[1:])
  assert int(resumed.step) == 3


def test_a_batch_without_tokens_is_no_bad_update():
  new, applied = _apply(_state(), gradient=0.0, loss=0.0, tokens=0)
  assert bool(applied.finite)
  assert int(new.step) == 1


def test_other_parameters_start_another_average():
  state, _ = _apply(_state())
  other = {'kernel': jnp.array([7.0, 8.0]), 'bias': jnp.array([9.0])}
  started = state.started_at(other)
  chex.assert_trees_all_equal(started.average, other)
  assert started.average['kernel'] is not other['kernel']
  assert _state(ema=False).started_at(other).average is None


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'ema': 1.0}, 'training.ema: must be < 1, got 1.0'),
    ({'ema': -0.1}, 'training.ema: must be >= 0'),
    ({'max_skipped': 0}, 'training.max_skipped: must be >= 1, got 0'),
  ],
)
def test_what_cannot_be_is_one_line(changes, message):
  with pytest.raises(InputError, match=message):
    TrainingConfig(**changes)


@pytest.mark.parametrize('ema', [True, False])
def test_the_state_is_updated_in_place(ema):
  # All arrays are of this shape, which is none of `_state`.
  abstract = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct((64, 128) if x.ndim else (), x.dtype),
    jax.eval_shape(lambda: _state(ema)),
  )

  def apply(state, gradients, sums):
    kept, applied = apply_update(state, gradients, sums, _OPTIMIZER, _CONFIG)
    return kept, applied.norm

  sums = LossSums(*(jax.ShapeDtypeStruct((), d) for d in _SUM_DTYPES))
  step = jax.jit(apply, donate_argnums=0)
  compiled = step.lower(abstract, abstract.parameters, sums).compile()
  assert re.findall(r'f32\[64,128\]\S* copy\(.*', compiled.as_text()) == []
