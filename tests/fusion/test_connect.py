import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.fusion.connection import LayerConnection
from fusion_jax.fusion.dense import DenseConnection, DenseOptions
from fusion_jax.fusion.dlcl import Dlcl, DlclOptions, predecessors
from fusion_jax.fusion.transparent import (
  TransparentAttention,
  TransparentOptions,
)
from fusion_jax.layers.attention import causal_mask
from fusion_jax.layers.context import Context

_WIDTH = 8


def _context(length=3, deterministic=True):
  return Context(causal_mask(length), deterministic)


def _config(layers, norm='post', **side):
  return ModelConfig(
    width=_WIDTH,
    filter=16,
    heads=2,
    encoder_layers=layers,
    norm=norm,
    encoder=SideConfig(**side),
  )


def _x(seed=0, scale=1.0, dtype=jnp.float32):
  x = np.random.default_rng(seed).normal(size=(2, 3, _WIDTH))
  return jnp.asarray(scale * x, dtype)


def _layer(number, x, xp=jnp):
  """Stands for layer `number` of a stack."""
  return xp.tanh(x) * number + 0.3 * xp.roll(x, number, axis=-1)


def _run(connection, x, layer=_layer):
  """As a stack does: H[0..L], the inputs of all layers and the output."""
  layers, inputs, carried = (x,), [], ()
  for number in range(1, connection.config.encoder_layers + 1):
    h, carried = connection.layer_input(layers, carried, _context(x.shape[1]))
    inputs.append(h)
    y = layer(number, h)
    layers = (*layers, connection.layer_output(layers, y))
  h, _ = connection.layer_input(layers, carried, _context(x.shape[1]))
  return layers, (*inputs, h)


def _initial(connection, x):
  init = jax.jit(lambda x: connection.init(jax.random.key(0), x, method=_run))
  return dict(nn.unbox(init(x)).get('params', {}))


def _apply(connection, params, x, layer=_layer):
  def run(module, x):
    return _run(module, x, layer)

  apply = jax.jit(
    lambda params, x: connection.apply({'params': params}, x, method=run)
  )
  return apply(params, x)


def _ln(x, scale=1.0, bias=0.0):
  x = np.asarray(x, np.float64)
  variance = x.var(-1, keepdims=True)
  return (x - x.mean(-1, keepdims=True)) / np.sqrt(
    variance + 1e-6
  ) * scale + bias


def _shaken(params, seed=9):
  """Parameters at a generic point."""
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: np.float32(leaf + rng.normal(0, 0.3, leaf.shape)), params
  )


def _close(a, b, tolerance=1e-5):
  largest = np.max(np.abs(b), initial=1)
  np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


def test_a_chain_passes_the_last_layer_on():
  layers = (_x(0), _x(1))
  chain = LayerConnection()
  assert chain.layer_input(layers, (), _context()) == (layers[-1], ())
  assert chain.layer_output(layers, layers[0]) is layers[0]


def test_predecessors_written_out():
  np.testing.assert_array_equal(
    predecessors(3, 0), [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
  )
  np.testing.assert_array_equal(
    predecessors(4, 2),
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]],
  )
  # After every second layer, every second one below.
  np.testing.assert_array_equal(
    predecessors(5, dilation=2, period=2),
    [
      [1, 0, 0, 0, 0],
      [0, 1, 0, 0, 0],
      [1, 0, 1, 0, 0],
      [0, 0, 0, 1, 0],
      [1, 0, 1, 0, 1],
    ],
  )


@pytest.mark.parametrize('layers', [1, 2, 5, 6])
def test_dense_doubles_a_constant(layers):
  connection = DenseConnection(_config(layers, fusion='dense'), 'encoder')
  assert not _initial(connection, _x())
  states, inputs = _apply(
    connection, {}, _x(), lambda number, x: jnp.full_like(x, 3)
  )
  for number in range(1, layers + 1):
    np.testing.assert_array_equal(states[number], 3 * 2.0 ** (number - 1))
  # Layers read the summed states, and so does what follows.
  for state, read in zip(states, inputs, strict=True):
    np.testing.assert_array_equal(state, read)


def test_dense_of_one_layer_is_the_baseline():
  config = _config(1, fusion='dense', options=DenseOptions(post_sum_norm=True))
  connection = DenseConnection(config, 'encoder')
  assert not _initial(connection, _x())
  states, _ = _apply(connection, {}, _x())
  _close(states[1], _layer(1, _x()))


@pytest.mark.parametrize('embedding', [False, True])
@pytest.mark.parametrize('norm', [False, True])
def test_dense_against_its_formula(embedding, norm):
  options = DenseOptions(include_embedding=embedding, post_sum_norm=norm)
  config = _config(3, fusion='dense', options=options)
  connection = DenseConnection(config, 'encoder')
  params = _shaken(_initial(connection, _x()))
  first = 1 if embedding else 2
  assert sorted(params) == (
    [f'sum_norm_{n}' for n in range(first, 4)] if norm else []
  )
  states, _ = _apply(connection, params, _x())
  expected = [np.asarray(_x())]
  for number in (1, 2, 3):
    y = _layer(number, expected[-1], np)
    y = y + sum(expected[0 if embedding else 1 :])
    if norm and number >= first:
      y = _ln(y, **params[f'sum_norm_{number}'])
    expected.append(y)
  for state, wanted in zip(states, expected, strict=True):
    _close(state, wanted, 1e-4)


def _dlcl(layers, norm, **options):
  config = _config(layers, norm, fusion='dlcl', options=DlclOptions(**options))
  return Dlcl(config, 'encoder')


def _dlcl_reference(params, x, layers, norm, window=0, softmax=False):
  """The equations, one by one, in NumPy."""
  weights, y, inputs = np.asarray(params['weights']), [np.asarray(x)], []

  def normalised(row, value):
    return _ln(value, **params[f'norm_{row}'])

  for row in range(layers + 1):
    first = max(0, row + 1 - window) if window else 0
    w = weights[row, first : row + 1]
    if softmax:
      w = np.exp(w) / np.exp(w).sum(0)
    if row == 0 and norm == 'post':
      inputs.append(y[0])
    else:
      terms = [
        normalised(k, y[k]) if norm == 'pre' and k else y[k]
        for k in range(first, row + 1)
      ]
      total = sum(a * b for a, b in zip(w, terms, strict=True))
      inputs.append(normalised(row, total) if norm == 'post' else total)
    y.append(_layer(row + 1, inputs[-1], np))
  return inputs


@pytest.mark.parametrize('layers', [1, 5])
@pytest.mark.parametrize('norm', ['pre', 'post', 'rezero'])
@pytest.mark.parametrize(
  ('options', 'reference'),
  [
    ({'start': 'one', 'frozen': True}, {}),
    ({'window': 1}, {'window': 1}),
    (
      {'normalize': 'softmax', 'weights': 'vector', 'window': 3},
      {'softmax': True, 'window': 3},
    ),
  ],
)
def test_dlcl_against_its_equations(layers, norm, options, reference):
  connection = _dlcl(layers, norm, **options)
  params = _shaken(_initial(connection, _x()))
  expected = _dlcl_reference(params, _x(), layers, norm, **reference)
  for got, wanted in zip(
    _apply(connection, params, _x())[1], expected, strict=True
  ):
    _close(got, wanted, 1e-4)


def test_dlcl_learns_the_weight_of_the_embedding_as_its_release_does():
  connection = _dlcl(3, 'post', first='learned')
  start = _initial(connection, _x())
  assert start['weights'][0, 0] == 1
  assert start.keys() == _initial(_dlcl(3, 'post'), _x()).keys()
  params = {**start, 'weights': start['weights'].at[0, 0].set(2.5)}
  _, inputs = _apply(connection, params, _x())
  _close(inputs[0], 2.5 * _x())
  gradient, _ = _dlcl_gradient(connection, params)
  assert gradient['weights'][0, 0] != 0


@pytest.mark.parametrize('normalize', ['none', 'softmax'])
@pytest.mark.parametrize('norm', ['pre', 'post'])
@pytest.mark.parametrize('window', [0, 2])
def test_dlcl_starts_as_the_mean_of_the_predecessors(norm, normalize, window):
  connection = _dlcl(4, norm, normalize=normalize, window=window)
  params = _initial(connection, _x())
  np.testing.assert_array_equal(params['weights'], np.tril(params['weights']))
  np.testing.assert_allclose(params['weights'].sum(1), 1, rtol=1e-6)
  states, inputs = _apply(connection, params, _x())
  np.testing.assert_array_equal(inputs[0], _x())
  for row in range(1, 5):
    read = [np.asarray(state) for state in states[: row + 1]]
    if norm == 'pre':
      read[1:] = map(_ln, read[1:])
    mean = np.mean(read[-window:] if window else read, axis=0)
    _close(inputs[row], mean if norm == 'pre' else _ln(mean), 1e-4)


def test_dlcl_start_one_is_a_sum():
  connection = _dlcl(2, 'rezero', start='one')
  params = _initial(connection, _x())
  assert sorted(params) == ['weights']
  np.testing.assert_array_equal(params['weights'], np.tril(np.ones((3, 3))))
  states, inputs = _apply(connection, params, _x())
  _close(inputs[2], states[0] + states[1] + states[2])


def test_dlcl_with_a_window_of_one_is_the_baseline_with_one_norm_more():
  connection = _dlcl(3, 'pre', window=1)
  params = _initial(connection, _x())
  states, inputs = _apply(connection, params, _x())
  for state, read in zip(states[1:], inputs[1:], strict=True):
    _close(read, _ln(state))
  # Without its norms nothing is left of it.
  connection = _dlcl(3, 'rezero', window=1)
  states, inputs = _apply(connection, _initial(connection, _x()), _x())
  for state, read in zip(states, inputs, strict=True):
    np.testing.assert_array_equal(state, read)


@pytest.mark.parametrize('norm', ['pre', 'post', 'rezero'])
@pytest.mark.parametrize('period', [1, 2, 4])
def test_averages_that_start_with_the_top_are_the_baseline(norm, period):
  connection = _dlcl(4, norm, norms='none', start='top', period=period)
  params = _initial(connection, _x())
  assert sorted(params) == ['weights']
  states, inputs = _apply(connection, params, _x())
  for state, read in zip(states, inputs, strict=True):
    np.testing.assert_array_equal(state, read)
  gradient, _ = _dlcl_gradient(connection, params)
  read = [row for row in range(1, 5) if row % period == 0]
  assert np.abs(gradient['weights'][4, :]).min() > 0
  assert np.flatnonzero(np.abs(gradient['weights']).sum(1)).tolist() == read


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_norms_are_there_where_something_reads_them(norm):
  connection = _dlcl(4, norm, period=2, dilation=2)
  # Sums follow layers 0, 2 and 4, of layers 0, 2 and 4.
  assert sorted(_initial(connection, _x())) == ['norm_2', 'norm_4', 'weights']


def _dlcl_gradient(connection, params):
  def loss(params, x):
    output = _apply(connection, params, x)[1][-1]
    return (output * _x(5)).sum()

  return jax.jit(jax.grad(loss, (0, 1)))(params, _x())


@pytest.mark.parametrize(
  ('norm', 'weights'),
  [('pre', 'scalar'), ('post', 'vector'), ('rezero', 'scalar')],
)
def test_dlcl_gradient_is_there_for_predecessors_only(norm, weights):
  connection = _dlcl(2, norm, weights=weights, window=2)
  gradient, down = _dlcl_gradient(
    connection, _shaken(_initial(connection, _x()))
  )
  read = predecessors(3, 2)
  read[0, 0] = norm != 'post'
  used = gradient['weights'] != 0
  if weights == 'vector':
    assert (used.all(-1) == read).all()
    used = used.any(-1)
  np.testing.assert_array_equal(used, read)
  assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))
  assert np.asarray(down).any()


def test_frozen_dlcl_weights_have_no_gradient():
  connection = _dlcl(2, 'pre', frozen=True)
  gradient, down = _dlcl_gradient(
    connection, _shaken(_initial(connection, _x()))
  )
  assert not np.asarray(gradient.pop('weights')).any()
  assert all(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))
  assert np.asarray(down).any()


def _count(tree):
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize('norm', ['pre', 'post'])
@pytest.mark.parametrize('layers', [1, 6])
def test_dlcl_size(layers, norm):
  params = _initial(_dlcl(layers, norm), _x())
  # (L + 1)^2 + 2 d L
  assert _count(params) == (layers + 1) ** 2 + 2 * _WIDTH * layers
  assert params['weights'].shape == (layers + 1, layers + 1)
  params = _initial(_dlcl(layers, norm, weights='vector'), _x())
  assert params['weights'].shape == (layers + 1, layers + 1, _WIDTH)


@pytest.mark.parametrize('norm', ['pre', 'post', 'rezero'])
@pytest.mark.parametrize('kind', [DenseConnection, Dlcl])
def test_connections_in_bfloat16_stay_close(kind, norm):
  config = dataclasses.replace(_config(3, norm), compute_dtype='bfloat16')
  half = kind(config, 'encoder')
  full = kind(dataclasses.replace(config, compute_dtype='float32'), 'encoder')
  params = _initial(full, _x())
  output = _apply(half, params, _x(dtype=jnp.bfloat16))[1][-1]
  assert output.dtype == jnp.bfloat16
  expected = _apply(full, params, _x())[1][-1]
  scale = float(jnp.abs(expected).max())
  _close(jnp.float32(output) / scale, expected / scale, 0.05)


def _extremes():
  return [
    _x(scale=1e-6),
    _x(scale=1e3),
    jnp.zeros_like(_x()),
  ]


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('norm', ['pre', 'post'])
@pytest.mark.parametrize('kind', [DenseConnection, Dlcl])
def test_connections_stay_finite(kind, norm, dtype):
  config = dataclasses.replace(_config(3, norm), compute_dtype=dtype)
  connection = kind(config, 'encoder')
  params = _initial(connection, _x())

  @jax.jit
  def both(params, x):
    def loss(params, x):
      output = _apply(connection, params, x, lambda number, x: x)[1][-1]
      return output.astype(jnp.float32).sum()

    return jax.value_and_grad(loss, (0, 1))(params, x)

  for x in _extremes():
    leaves = jax.tree.leaves(both(params, x.astype(dtype)))
    assert all(np.isfinite(np.float32(leaf)).all() for leaf in leaves)


def _transparent(layers, norm='post', decoder_layers=4, **side):
  config = dataclasses.replace(
    _config(layers, norm, fusion='transparent', **side),
    decoder_layers=decoder_layers,
  )
  return TransparentAttention(config, 'encoder')


def _layers(count, seed=0, scale=1.0, dtype=jnp.float32):
  return tuple(_x(seed + n, scale, dtype) for n in range(count + 1))


def _transparent_params(module, layers):
  init = jax.jit(lambda *a: module.init(jax.random.key(0), a, _context()))
  return nn.unbox(init(*layers))['params']


@pytest.mark.parametrize('layers', [1, 5])
def test_transparent_memories_start_as_the_mean(layers):
  module, states = _transparent(layers), _layers(layers)
  params = _transparent_params(module, states)
  assert params['weights'].shape == (layers + 1, 4)
  memories = module.apply({'params': params}, states, _context())
  assert memories.shape == (4, *states[0].shape)
  mean = np.mean([_ln(states[0]), *states[1:]], axis=0)
  for memory in memories:
    _close(memory, mean)


@pytest.mark.parametrize(
  ('norm', 'input_norm', 'own'),
  [
    ('post', 'auto', True),
    ('pre', 'auto', False),
    ('pre', 'none', True),
    ('post', 'per_layer', False),
    ('rezero', 'auto', False),
  ],
)
def test_transparent_attention_normalises_the_embedding_once(
  norm, input_norm, own
):
  module, states = _transparent(2, norm, input_norm=input_norm), _layers(2)
  params = _transparent_params(module, states)
  assert ('embedding_norm' in params) == own
  only_h0 = {**params, 'weights': jnp.zeros((3, 4)).at[0].set(1e4)}
  for memory in module.apply({'params': only_h0}, states, _context()):
    _close(memory, _ln(states[0]) if own else states[0])


def test_transparent_weight_on_the_last_layer_is_the_baseline():
  module, states = _transparent(3), _layers(3)
  params = _transparent_params(module, states)
  params['weights'] = jnp.zeros((4, 4)).at[3].set(1e4)
  for memory in module.apply({'params': params}, states, _context()):
    np.testing.assert_array_equal(memory, states[3])


@settings(max_examples=5)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 99))
def test_transparent_memories_are_means(layers, decoder_layers, seed):
  module = _transparent(layers, 'rezero', decoder_layers)
  weights = 3 * np.random.default_rng(seed).normal(
    size=(layers + 1, decoder_layers)
  )
  states = _layers(layers, seed)
  apply = jax.jit(lambda *a: module.apply(*a, _context()))
  variables = {'params': {'weights': np.float32(weights)}}
  # Columns sum to 1, and each decoder layer has its own.
  for memory in apply(variables, (states[0],) * (layers + 1)):
    _close(memory, states[0])
  shares = np.exp(weights) / np.exp(weights).sum(0)
  expected = np.einsum('lj,lbtd->jbtd', shares, np.stack(states))
  _close(apply(variables, states), expected, 1e-4)


@pytest.mark.parametrize(
  ('place', 'kept_as', 'dropped_as'),
  [
    # Kept, the logit ln 2 doubles: 4 / (4 + 1). Dropped, it is 0: 1 / 2.
    ('logits', 4 / 5, 1 / 2),
    # The share 2 / 3, kept and doubled, or dropped.
    ('weights', 4 / 3, 0),
  ],
)
def test_transparent_dropout_by_its_place(place, kept_as, dropped_as):
  options = TransparentOptions(dropout=0.5, dropout_place=place)
  module = _transparent(1, 'rezero', 300, options=options)
  one, zero = jnp.ones((2, 3, _WIDTH)), jnp.zeros((2, 3, _WIDTH))
  params = {'weights': jnp.zeros((2, 300)).at[0].set(np.log(2))}
  memories = module.apply(
    {'params': params},
    (one, zero),
    _context(deterministic=False),
    rngs={'dropout': jax.random.key(0)},
  )
  kept = np.isclose(memories, kept_as)
  assert (kept | np.isclose(memories, dropped_as)).all()
  # 300 draws of one half: 0.38 is four deviations away.
  assert 0.38 < kept.mean() < 0.62
  plain = module.apply({'params': params}, (one, zero), _context())
  np.testing.assert_allclose(plain, 2 / 3, rtol=1e-6)


def test_transparent_memories_can_have_a_norm():
  plain = _transparent(3, 'rezero', 2)
  params = _shaken(_transparent_params(plain, _layers(3)))
  params = jax.tree.map(jnp.asarray, params)
  options = TransparentOptions(memory_norm=True)
  module = _transparent(3, 'rezero', 2, options=options)
  norm = {'scale': _x()[0, 0], 'bias': _x()[0, 1]}
  got = module.apply(
    {'params': {**params, 'memory_norm': norm}}, _layers(3), _context()
  )
  memories = plain.apply({'params': params}, _layers(3), _context())
  for own, memory in zip(got, memories, strict=True):
    _close(own, _ln(memory, **norm), 1e-4)


def test_transparent_uniform_weights_fill_their_range():
  options = TransparentOptions(weights='uniform')
  module = _transparent(3, 'post', 500, options=options)
  weights = _transparent_params(module, _layers(3))['weights']
  assert weights.shape == (4, 500)
  # sqrt(1 / (3 + 1))
  assert 0.49 < np.abs(weights).max() <= 0.5
  assert abs(float(weights.mean())) < 0.03


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_transparent_gradients(dtype):
  config = dataclasses.replace(_transparent(3).config, compute_dtype=dtype)
  module = TransparentAttention(config, 'encoder')
  params = _shaken(_transparent_params(module, _layers(3)))
  toward = jnp.stack([_x(n, dtype=dtype) for n in range(7, 11)])

  @jax.jit
  def gradient(params, states):
    def loss(params, states):
      memories = module.apply({'params': params}, states, _context())
      assert memories.dtype == dtype
      return (memories * toward).sum()

    return jax.grad(loss, (0, 1))(params, states)

  for scale in (1e-6, 1.0, 1e3, 0.0):
    leaves = jax.tree.leaves(gradient(params, _layers(3, 0, scale, dtype)))
    assert all(np.isfinite(np.float32(leaf)).all() for leaf in leaves)
    if scale == 1.0:
      assert all(np.float32(leaf).any() for leaf in leaves)


def test_transparent_size():
  config = ModelConfig(encoder=SideConfig(fusion='transparent'))
  module = TransparentAttention(config, 'encoder')
  x = jax.ShapeDtypeStruct((1, 2, 512), jnp.float32)
  shapes = jax.eval_shape(
    lambda *layers: module.init(jax.random.key(0), layers, _context(2)),
    *[x] * 7,
  )
  # (6 + 1) * 6 weights, and the norm of H[0].
  assert _count(shapes['params']) == 42 + 2 * 512
