"""One update: Adam, what is frozen, averages, what is skipped."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import extended_but

from fusion_jax.config import (
  PRESETS,
  ExperimentConfig,
  ModelConfig,
  OptimizerConfig,
  TrainingConfig,
)
from fusion_jax.config.fusion import SideConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES
from fusion_jax.fusion.shortcuts import ShortcutOptions
from fusion_jax.models.losses import LossSums
from fusion_jax.models.transformer import (
  Transformer,
  initial_parameters,
  path_name,
)
from fusion_jax.parallel.mesh import data_mesh
from fusion_jax.runs.checkpoint import TrainState
from fusion_jax.testing import assert_close
from fusion_jax.training.build import initial_state, plan_state
from fusion_jax.training.optimizer import (
  apply_update,
  check_freeze,
  fusion_rates,
  make_optimizer,
  make_schedule,
  moved_average,
  trained_part,
)


def test_updates_and_moments_are_those_of_optax():
  config = OptimizerConfig(schedule='inverse_sqrt', peak=1.0, warmup_steps=1)
  ours = make_optimizer(config, 1)
  betas = config.beta1, config.beta2
  theirs = optax.adam(lambda n: (n + 1.0) ** -0.5, *betas, config.epsilon)
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
  # The norm of [3, 4] is 5.
  rate = float(make_schedule(config, 1)(0))
  scaled = float(updates['b'][0]) * 1e9 / rate
  assert scaled == pytest.approx(-0.8, rel=1e-4)


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


def _frozen_names(parameters, patterns):
  def names(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_name(path) for path, _ in leaves}

  return names(parameters) - names(trained_part(parameters, patterns))


def _layers():
  return {
    'encoder': {
      'layer_0': {'kernel': jnp.full((2, 2), 2.0), 'bias': jnp.full(2, 2.0)},
      'layer_1': {'kernel': jnp.full((2, 2), 2.0), 'bias': jnp.full(2, 2.0)},
    },
    'source_embedding': jnp.full((3, 2), 2.0),
  }


@pytest.mark.parametrize(
  ('patterns', 'names'),
  [
    (('encoder/layer_0/*',), ['layer_0/kernel', 'layer_0/bias']),
    (('*/bias',), ['layer_0/bias', 'layer_1/bias']),
    (
      ('encoder/layer_[1-9]/k*', '*_0/bias'),
      ['layer_1/kernel', 'layer_0/bias'],
    ),
    (('encoder',), []),
  ],
)
def test_patterns_by_hand(patterns, names):
  expected = {f'encoder/{name}' for name in names}
  assert _frozen_names(_layers(), patterns) == expected


@pytest.mark.parametrize(
  ('patterns', 'message'),
  [
    (
      ('*bias', 'encoder/layer0/kernel'),
      "'encoder/layer0/kernel' matches no parameter; the nearest names are "
      'encoder/layer_0/kernel, encoder/layer_1/kernel, encoder/layer_0/bias',
    ),
    (('encoder/*', 'source*'), 'matches all parameters and leaves nothing'),
  ],
)
def test_what_freezes_nothing_or_all_is_one_line(patterns, message):
  with pytest.raises(InputError, match=r'^config.training.freeze: ') as error:
    check_freeze(_layers(), patterns)
  assert message in str(error.value)
  assert '\n' not in str(error.value)


def test_an_empty_pattern_is_refused():
  with pytest.raises(InputError, match='must have no empty pattern'):
    TrainingConfig(freeze=('encoder/*', ''))


def test_frozen_parameters_have_no_update_no_decay_and_no_moments():
  patterns = ('encoder/layer_0/*', 'source_embedding')
  config = OptimizerConfig(
    schedule='constant', peak=0.1, warmup_steps=1, weight_decay=0.5
  )
  optimizer = make_optimizer(config, 2)
  parameters = _layers()
  moments = optimizer.init(trained_part(parameters, patterns))
  state = TrainState(jnp.int32(0), parameters, moments)
  # Two moments of 4 + 2 numbers, and two counts.
  assert sum(x.size for x in jax.tree.leaves(state.optimizer)) == 2 * 6 + 2
  gradients = jax.tree.map(jnp.ones_like, parameters)
  training = TrainingConfig(freeze=patterns)
  sums = LossSums(jnp.float32(1), jnp.float32(1), jnp.int32(0), jnp.int32(1))
  new, applied = apply_update(state, gradients, sums, optimizer, training)
  # The norm is that of the six ones that are left.
  assert float(applied.norm) == pytest.approx(6**0.5)
  chex.assert_trees_all_equal(
    new.parameters['encoder']['layer_0'], parameters['encoder']['layer_0']
  )
  np.testing.assert_array_equal(
    new.parameters['source_embedding'], parameters['source_embedding']
  )
  moved = new.parameters['encoder']['layer_1']
  # 2 - 0.1 * 1, and 0.1 * 0.5 * 2 of decay for the kernel.
  np.testing.assert_allclose(moved['bias'], 1.9, rtol=1e-6)
  np.testing.assert_allclose(moved['kernel'], 1.8, rtol=1e-6)


@pytest.mark.parametrize('pattern', ['encoder/*', '*_embedding', '*/kernel'])
def test_a_planned_state_has_moments_of_what_is_trained_alone(pattern):
  config = ExperimentConfig(
    model=PRESETS['tiny'], training=TrainingConfig(freeze=(pattern,))
  )
  model = Transformer(config.model, 20, 20, 2)
  optimizer = make_optimizer(config.optimizer, config.model.width)
  plan = plan_state(model, optimizer, config, data_mesh(jax.devices()[:1]))
  fresh = jax.eval_shape(lambda: initial_state(model, optimizer, 0).parameters)
  trained = trained_part(fresh, (pattern,))
  own = jax.eval_shape(optimizer.init, trained)
  assert jax.tree.structure(plan.abstract.optimizer) == jax.tree.structure(own)


_NO_FUSION = SideConfig()


def _model(encoder=_NO_FUSION, decoder=_NO_FUSION, **changes):
  config = ModelConfig(
    width=8,
    filter=12,
    heads=2,
    encoder_layers=2,
    decoder_layers=2,
    encoder=encoder,
    decoder=decoder,
    **changes,
  )
  return Transformer(config, 11, 11, 2)


def _constant(**fields) -> OptimizerConfig:
  return OptimizerConfig(
    schedule='constant', peak=1.0, warmup_steps=1, **fields
  )


def _first_updates(model, config):
  """The first update of every parameter for a gradient of 1."""
  parameters = initial_parameters(model, 0)
  optimizer = make_optimizer(config, 8, rates=fusion_rates(model, config))
  ones = jax.tree.map(jnp.ones_like, parameters)
  updates, _ = optimizer.update(ones, optimizer.init(parameters), parameters)
  return {
    path_name(path): np.asarray(leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(updates)
  }


@pytest.mark.extended
@pytest.mark.parametrize('scan_layers', extended_but([False, True], [True]))
def test_the_rate_reaches_what_the_plain_model_lacks(scan_layers):
  encoder = SideConfig(fusion='iterative')
  decoder = SideConfig(
    attention='shortcut', attention_options=ShortcutOptions(source='lexical')
  )
  model = _model(encoder, decoder, scan_layers=scan_layers)
  updates = _first_updates(model, _constant(fusion_rate=0.25))
  new = {
    name
    for name in updates
    if name.startswith('encoder/read_out/')
    or 'self_attention/shortcut_' in name
    or name.endswith('_gate_bias')
  }
  assert len(new) == 2 + 4 + (4 if scan_layers else 8)
  for name, update in updates.items():
    # Adam's first update is the rate, whatever the gradient.
    expected = -0.25 if name in new else -1.0
    np.testing.assert_allclose(update, expected, rtol=1e-5, err_msg=name)


def test_each_side_has_the_rate_of_its_scheme():
  encoder, decoder = SideConfig(fusion='linear'), SideConfig(fusion='hops')
  rates = fusion_rates(_model(encoder, decoder), _constant())
  for name, rate in rates.items():
    side = name.partition('/')[0]
    own = {'encoder': 'linear', 'decoder': 'hops'}.get(side)
    shared = min(SCHEMES['linear'].rate, SCHEMES['hops'].rate)
    assert rate == (SCHEMES[own].rate if own else shared), name
  assert any(name.startswith('layer_embedding') for name in rates)


def test_a_rate_of_one_leaves_the_optimizer_as_it_is():
  model = _model(SideConfig(attention='shortcut'))
  assert fusion_rates(model, _constant()) == {}
  linear = _model(SideConfig(fusion='linear'))
  config = _constant(fusion_rate=1.0)
  assert fusion_rates(linear, config) == {}
  assert fusion_rates(_model(), _constant(fusion_rate=0.5)) == {}


_OPTIMIZER = make_optimizer(
  OptimizerConfig(
    schedule='inverse_sqrt', peak=0.1, warmup_steps=5, weight_decay=0.1
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
