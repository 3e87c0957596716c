import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fusion_jax.config import OptimizerConfig
from fusion_jax.training.optimizer import (
  inverse_sqrt_schedule,
  make_optimizer,
  make_schedule,
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


def test_both_schedules_are_one_function_of_peak_and_warmup():
  a = vaswani_schedule(256, 1_000, scale=2.0)
  b = inverse_sqrt_schedule(2 * 256**-0.5 * 1_000**-0.5, 1_000)
  for count in (0, 10, 998, 999, 1_000, 50_000):
    assert float(a(count)) == pytest.approx(float(b(count)), rel=1e-5)


def test_the_config_names_the_schedule():
  config = OptimizerConfig(schedule='inverse_sqrt', peak=1.0, warmup_steps=4)
  assert float(make_schedule(config, 64)(3)) == pytest.approx(1.0)
  config = OptimizerConfig(schedule='vaswani', scale=8.0, warmup_steps=4)
  # 8 * 64^-0.5 * 4^-0.5
  assert float(make_schedule(config, 64)(3)) == pytest.approx(0.5)


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
