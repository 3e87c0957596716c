import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_jax.config import ExperimentConfig, OptimizerConfig, TrainingConfig
from fusion_jax.errors import InputError
from fusion_jax.training.optimizer import (
  last_rate,
  make_optimizer,
  make_schedule,
)
from fusion_jax.training.schedules import (
  constant_schedule,
  cosine_schedule,
  inverse_sqrt_schedule,
  vaswani_schedule,
)


def test_vaswani_schedule_by_hand():
  rate = vaswani_schedule(width=512, warmup_steps=4_000)
  # 512^-0.5 * 1 * 4000^-1.5; the peak 512^-0.5 * 4000^-0.5; then t^-0.5.
  assert float(rate(0)) == pytest.approx(1.74693e-7, rel=1e-4)
  assert float(rate(3_999)) == pytest.approx(6.98771e-4, rel=1e-4)
  assert float(rate(15_999)) == pytest.approx(6.98771e-4 / 2, rel=1e-4)


def test_inverse_sqrt_schedule_by_hand():
  rate = inverse_sqrt_schedule(peak=2e-3, warmup_steps=1_000)
  assert float(rate(0)) == pytest.approx(2e-6)
  assert float(rate(499)) == pytest.approx(1e-3)
  assert float(rate(999)) == pytest.approx(2e-3)
  assert float(rate(3_999)) == pytest.approx(1e-3)


def test_cosine_schedule_by_hand():
  rate = cosine_schedule(peak=1.0, final=0.2, warmup_steps=100, steps=500)
  # Halfway up; the peak; a quarter, half and all of the way down: cos(pi / 4),
  # 0 and -1; and what follows the end.
  assert float(rate(49)) == pytest.approx(0.5)
  assert float(rate(99)) == pytest.approx(1.0)
  assert float(rate(199)) == pytest.approx(0.2 + 0.4 * (1 + 0.5**0.5))
  assert float(rate(299)) == pytest.approx(0.6)
  assert float(rate(499)) == pytest.approx(0.2)
  assert float(rate(700)) == pytest.approx(0.2)


def test_constant_schedule_by_hand():
  rate = constant_schedule(peak=3e-4, warmup_steps=3)
  values = [float(rate(count)) for count in (0, 1, 2, 3, 99_999)]
  assert values == pytest.approx([1e-4, 2e-4, 3e-4, 3e-4, 3e-4])
  none = constant_schedule(peak=5e-5, warmup_steps=1)
  assert float(none(0)) == pytest.approx(5e-5)


def test_two_schedules_are_one_function_of_peak_and_warmup():
  a = vaswani_schedule(256, 1_000, scale=2.0)
  b = inverse_sqrt_schedule(2 * 256**-0.5 * 1_000**-0.5, 1_000)
  for count in (0, 10, 998, 999, 1_000, 50_000):
    assert float(a(count)) == pytest.approx(float(b(count)), rel=1e-5)


@pytest.mark.parametrize(
  ('changes', 'count', 'rate'),
  [
    # 8 * 64^-0.5 * 4^-0.5.
    ({'schedule': 'vaswani', 'scale': 8.0}, 3, 0.5),
    ({'schedule': 'inverse_sqrt'}, 3, 1.0),
    ({'schedule': 'inverse_sqrt'}, 15, 0.5),
    ({'schedule': 'cosine', 'final': 0.5}, 7, 0.75),
    ({'schedule': 'constant'}, 15, 1.0),
  ],
)
def test_the_config_names_the_schedule(changes, count, rate):
  config = OptimizerConfig(peak=1.0, warmup_steps=4, **changes)
  assert float(make_schedule(config, 64, 12)(count)) == pytest.approx(rate)


def _rates(config, tokens, steps=100):
  """The rates of updates with batches of so many target tokens."""
  optimizer = make_optimizer(config, 16, steps)
  x = jnp.ones(1)
  state, rates = optimizer.init(x), []
  for count in tokens:
    _, state = optimizer.update(x, state, x, tokens=jnp.int32(count))
    rates.append(float(last_rate(config, 16, steps, state)))
  return rates


@pytest.mark.parametrize(
  ('schedule', 'after'),
  [
    # W = 3 updates: the third reaches 100 tokens. Then sqrt(3 / t).
    ('inverse_sqrt', [(3 / 4) ** 0.5, (3 / 5) ** 0.5]),
    ('constant', [1.0, 1.0]),
    # (1 + cos(pi (t - 3) / (5 - 3))) / 2.
    ('cosine', [0.5, 0.0]),
  ],
)
def test_a_warm_up_by_tokens_by_hand(schedule, after):
  config = OptimizerConfig(schedule=schedule, peak=1.0, warmup_tokens=100)
  rates = _rates(config, [20, 30, 70, 50, 10], steps=5)
  assert rates == pytest.approx([0.2, 0.5, 1.0, *after], abs=1e-6)


@pytest.mark.parametrize('schedule', ['inverse_sqrt', 'cosine', 'constant'])
def test_batches_of_one_size_warm_up_as_by_steps(schedule):
  tokens = OptimizerConfig(schedule=schedule, warmup_tokens=400)
  rate = make_schedule(OptimizerConfig(schedule=schedule, warmup_steps=4), 1, 9)
  by_steps = [float(rate(count)) for count in range(9)]
  assert _rates(tokens, [100] * 9, steps=9) == pytest.approx(by_steps, rel=1e-5)


def test_the_tokens_of_a_long_run_do_not_overflow():
  # Each batch has a quarter of the largest int32; the sum passes it.
  config = OptimizerConfig(
    schedule='inverse_sqrt', peak=1.0, warmup_tokens=2**31 - 1
  )
  rates = _rates(config, [2**29] * 12)
  expected = [0.25, 0.5, 0.75, 1.0, *np.sqrt(4 / np.arange(5, 13))]
  assert rates == pytest.approx(expected, rel=1e-5)


@given(
  st.sampled_from(['inverse_sqrt', 'cosine', 'constant']),
  st.integers(1, 50),
  st.integers(0, 200),
)
def test_rates_grow_to_the_peak_and_stay_under_it(schedule, warmup, count):
  config = OptimizerConfig(
    schedule=schedule, peak=1.0, final=0.1, warmup_steps=warmup
  )
  rate = make_schedule(config, 16, 100)
  here, there = float(rate(count)), float(rate(count + 1))
  assert 0 < here <= 1 + 1e-6
  assert there > here if count + 1 < warmup else there <= here + 1e-6


def test_a_schedule_runs_on_the_device():
  rate = jax.jit(cosine_schedule(1.0, 0.0, 10, 20))
  assert float(rate(jnp.int32(14))) == pytest.approx(0.5)


@pytest.mark.parametrize(
  ('optimizer', 'message'),
  [
    ({'final': 1.0}, 'optimizer.final: must be between 0 and .*0.0005'),
    ({'warmup_tokens': -1}, 'optimizer.warmup_tokens: must be >= 0'),
    (
      {'warmup_tokens': 2**31},
      'warmup_tokens: must be <= 2147483647',
    ),
    ({'warmup_tokens': 9}, "warmup_tokens: needs a .*use 'inverse_sqrt'"),
    (
      {'schedule': 'cosine', 'warmup_steps': 50},
      'optimizer.warmup_steps: must be below training.steps=50, .* got 50',
    ),
  ],
)
def test_what_cannot_be_is_one_line(optimizer, message):
  with pytest.raises(InputError, match=message) as error:
    ExperimentConfig(
      optimizer=OptimizerConfig(**optimizer), training=TrainingConfig(steps=50)
    )
  assert '\n' not in str(error.value)
