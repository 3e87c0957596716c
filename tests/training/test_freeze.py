import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusion_jax.config import (
  PRESETS,
  ExperimentConfig,
  ModelConfig,
  OptimizerConfig,
  TrainingConfig,
)
from fusion_jax.errors import InputError
from fusion_jax.models.losses import LossSums
from fusion_jax.models.parameter_kinds import path_name
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.parallel.mesh import data_mesh
from fusion_jax.runs.state import TrainState
from fusion_jax.training.freeze import (
  are_frozen,
  check_patterns,
  without_frozen,
)
from fusion_jax.training.initial_state import initial_state, plan_state
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.update import apply_update


def _names(parameters, patterns):
  frozen = jax.tree_util.tree_leaves_with_path(are_frozen(parameters, patterns))
  return {path_name(path) for path, value in frozen if value}


def _tree():
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
  assert _names(_tree(), patterns) == expected


@pytest.mark.parametrize(
  ('scan', 'pattern', 'count'),
  [
    # Four kernels and biases of attention, two of feed-forward, two norms.
    (False, 'encoder/layer_0/*', 16),
    (False, 'encoder/*', 32),
    (True, 'encoder/layers/*', 16),
    (True, '*_embedding', 1),
  ],
)
def test_patterns_over_a_model(scan, pattern, count):
  config = ModelConfig(
    width=8, heads=2, encoder_layers=2, decoder_layers=1, scan_layers=scan
  )
  model = Transformer(config, 11, 11, 2)
  shapes = jax.eval_shape(lambda: initial_parameters(model, 0))
  check_patterns(shapes, (pattern,))
  assert len(_names(shapes, (pattern,))) == count


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
    check_patterns(_tree(), patterns)
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
  optimizer = make_optimizer(config, 2, 0, patterns)
  parameters = _tree()
  state = TrainState(jnp.int32(0), parameters, optimizer.init(parameters))
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


def test_the_clipped_norm_is_that_of_what_is_trained():
  config = OptimizerConfig(
    schedule='constant',
    peak=1.0,
    warmup_steps=1,
    clip_norm=1.0,
    beta1=0.0,
    beta2=0.0,
    epsilon=1e9,
  )
  optimizer = make_optimizer(config, 2, 0, ('a',))
  gradients = {'a': jnp.array([1e6]), 'b': jnp.array([0.5])}
  updates, _ = optimizer.update(gradients, optimizer.init(gradients), gradients)
  # A huge epsilon makes Adam linear; 0.5 is below the limit.
  assert float(updates['b'][0]) == pytest.approx(-0.5e-9)
  assert float(updates['a'][0]) == 0


@pytest.mark.parametrize(
  ('patterns', 'products'),
  [
    # x a and (x a) b; the gradient of b; two products for that of a.
    ((), 5),
    (('a',), 3),
  ],
)
def test_gradients_of_frozen_parameters_are_not_computed(patterns, products):
  def step(parameters, x):
    def loss(p):
      return ((x @ p['a'] @ p['b']) ** 2).sum()

    return without_frozen(jax.grad(loss)(parameters), patterns)

  parameters = {'a': jnp.ones((4, 5)), 'b': jnp.ones((5, 6))}
  compiled = jax.jit(step).lower(parameters, jnp.ones((7, 4))).compile()
  assert compiled.as_text().count(' dot(') == products


@pytest.mark.parametrize('pattern', ['encoder/*', '*_embedding', '*/kernel'])
def test_a_planned_state_has_moments_of_what_is_trained_alone(pattern):
  config = ExperimentConfig(model=PRESETS['tiny'])
  model = Transformer(config.model, 20, 20, 2)
  optimizer = make_optimizer(config.optimizer, config.model.width, 1, [pattern])
  plan = plan_state(model, optimizer, config, data_mesh(jax.devices()[:1]))
  fresh = jax.eval_shape(lambda: initial_state(model, optimizer, 0).parameters)
  own = jax.eval_shape(optimizer.init, fresh)
  assert jax.tree.structure(plan.abstract.optimizer) == jax.tree.structure(own)
