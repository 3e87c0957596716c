"""Learning rates by hand, as they are told, and what cannot be."""

import jax.numpy as jnp
import pytest

from fusion_jax.config import ExperimentConfig, OptimizerConfig, TrainingConfig
from fusion_jax.errors import InputError
from fusion_jax.training.optimizer import (
  last_rate,
  make_optimizer,
  make_schedule,
)


@pytest.mark.parametrize(
  ('config', 'rates'),
  [
    # 512^-0.5 * 1 * 4000^-1.5; the peak 512^-0.5 * 4000^-0.5; then t^-0.5.
    (
      OptimizerConfig('vaswani', warmup_steps=4_000),
      {0: 1.74693e-7, 3_999: 6.98771e-4, 15_999: 6.98771e-4 / 2},
    ),
    # 8 * 512^-0.5 * 2^-0.5.
    (OptimizerConfig('vaswani', scale=8.0, warmup_steps=2), {1: 0.25}),
    (
      OptimizerConfig('inverse_sqrt', peak=2e-3, warmup_steps=1_000),
      {0: 2e-6, 499: 1e-3, 999: 2e-3, 3_999: 1e-3},
    ),
    # Halfway up; the peak; a quarter, half and all of the way down, where the
    # cosine is that of pi / 4, 0 and -1; and what follows the end.
    (
      OptimizerConfig('cosine', peak=1.0, final=0.2, warmup_steps=100),
      {49: 0.5, 99: 1.0, 199: 0.2 + 0.4 * (1 + 0.5**0.5), 299: 0.6}
      | {499: 0.2, 700: 0.2},
    ),
    (
      OptimizerConfig('constant', peak=3e-4, warmup_steps=3),
      {0: 1e-4, 1: 2e-4, 2: 3e-4, 3: 3e-4, 99_999: 3e-4},
    ),
    (OptimizerConfig('constant', peak=5e-5, warmup_steps=1), {0: 5e-5}),
  ],
)
def test_rates_by_hand(config, rates):
  rate = make_schedule(config, 512, steps=500)
  found = {count: float(rate(count)) for count in rates}
  assert found == pytest.approx(rates, rel=1e-5)


@pytest.mark.parametrize(
  'schedule', ['vaswani', 'inverse_sqrt', 'cosine', 'constant']
)
def test_the_rate_that_is_told_is_the_rate_that_was_used(schedule):
  config = OptimizerConfig(
    schedule=schedule, warmup_steps=3, weight_decay=0.1, clip_norm=9.0
  )
  optimizer = make_optimizer(config, 16, 6)
  rate = make_schedule(config, 16, 6)
  x = {'kernel': jnp.ones(1), 'bias': jnp.ones(1)}
  state = optimizer.init(x)
  for count in range(6):
    _, state = optimizer.update(x, state, x)
    assert float(last_rate(config, 16, 6, state)) == float(rate(count))


@pytest.mark.parametrize(
  ('optimizer', 'message'),
  [
    ({'final': 1.0}, 'optimizer.final: must be between 0 and .*0.0005'),
    (
      {'schedule': 'cosine', 'warmup_steps': 50},
      'optimizer.warmup_steps: must be below training.steps=50, .* got 50',
    ),
  ],
)
def test_a_schedule_that_cannot_be_is_one_line(optimizer, message):
  with pytest.raises(InputError, match=message) as error:
    ExperimentConfig(
      optimizer=OptimizerConfig(**optimizer), training=TrainingConfig(steps=50)
    )
  assert '\n' not in str(error.value)
