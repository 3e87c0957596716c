"""Every fusion against its reference in `references.py`.

The modules compute in float32, the references in float64. All parameters are
noise: no initialiser's zero or one hides a term.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from cases import without_unread
from flax import linen as nn

from fusion_jax.config import ModelConfig, TrainingConfig
from fusion_jax.config import fusion as fusion_options
from fusion_jax.data.batching import Batch
from fusion_jax.fusion import (
  average,
  dense,
  dlcl,
  dynamic_combination,
  dynamic_routing,
  em_routing,
  feed_forward,
  hops,
  linear,
  transparent,
  tree,
)
from fusion_jax.fusion.gtrans import (
  DecoderGroups,
  EncoderGroups,
  keep_groups,
  mixture_log_probabilities,
)
from fusion_jax.fusion.multi_layer import MultiLayerAttention
from fusion_jax.fusion.shortcuts import ShortcutAttention
from fusion_jax.layers.attention import causal_mask, padding_mask
from fusion_jax.layers.context import Context
from fusion_jax.models.losses import cross_entropy
from fusion_jax.models.transformer import ModelOutput, OutputLayer
from fusion_jax.testing import assert_close
from fusion_jax.training.step import batch_diversity, count_tokens

_BATCH, _LENGTH, _WIDTH, _HEADS = 2, 5, 8, 2
_LENGTHS = np.array([5, 3], np.int32)
_KEEP = np.arange(_LENGTH) < _LENGTHS[:, None]

_OPTIONS = {
  field.name: type(field.default)
  for field in dataclasses.fields(fusion_options.SideConfig)
}


def _config(side, depth, field, options, fusion='none', norm='post'):
  """A model whose `side` has `depth` layers and these options in `field`."""
  chosen = fusion_options.SideConfig(
    fusion=fusion, **{field: _OPTIONS[field](**options)}
  )
  if fusion != 'none':
    chosen = without_unread(chosen, side)
  return ModelConfig(
    width=_WIDTH,
    filter=12,
    heads=_HEADS,
    norm=norm,
    dropout=0.0,
    **{side: chosen, f'{side}_layers': depth},
  )


def _context(side):
  """Padding in the encoder, causality in the decoder."""
  mask = (
    padding_mask(jnp.asarray(_LENGTHS), _LENGTH)
    if side == 'encoder'
    else causal_mask(_LENGTH)
  )
  return Context(mask=mask, deterministic=True, tokens=jnp.asarray(_KEEP))


def _mask(side):
  return np.asarray(_context(side).mask)


def _states(count, seed=0):
  rng = np.random.default_rng(seed)
  return [rng.normal(size=(_BATCH, _LENGTH, _WIDTH)) for _ in range(count)]


def _single(tree):
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


def _noise(shapes):
  """Normal, with deviation fan_in^-0.5 in kernels and 1 elsewhere."""
  rng = np.random.default_rng(1)

  def fill(path, leaf):
    scale = leaf.shape[-2] ** -0.5 if path[-1].key == 'kernel' else 1.0
    return rng.normal(0, scale, leaf.shape)

  return jax.tree_util.tree_map_with_path(fill, shapes)


def _run(module, method, *arrays):
  """The module's output, and the parameters it had."""

  def init(*arrays):
    return module.init(jax.random.key(0), *arrays, method=method)

  arrays = _single(arrays)
  shapes = nn.unbox(jax.eval_shape(init, *arrays)).get('params', {})
  parameters = _noise(shapes)
  apply = jax.jit(
    lambda p, *arrays: module.apply({'params': p}, *arrays, method=method)
  )
  return apply(_single(parameters), *arrays), parameters


def _compare(result, expected):
  result, expected = jax.tree.leaves(result), jax.tree.leaves(expected)
  for ours, theirs in zip(result, expected, strict=True):
    assert ours.dtype == jnp.float32
    assert_close(ours, theirs, units=128)


def _words(options):
  return ','.join(f'{k}={v}' for k, v in options.items()) or 'default'


def _cases(*variants, **first):
  """Options with their side and depth; the first ones at every depth."""
  places = [('decoder', 1), ('encoder', 3), ('decoder', 6)]
  cases = [(first, *place) for place in places]
  for index, options in enumerate(variants):
    cases.append((options, ('decoder', 'encoder')[index % 2], 3))
  return pytest.mark.parametrize(
    ('options', 'side', 'depth'),
    [pytest.param(*case, id=_case_name(*case)) for case in cases],
  )


def _case_name(options, side, depth):
  return f'{_words(options)}-{side}-{depth}'


# Read-outs.


def _check_read_out(module, depth, side, reference):
  layers, context = _states(depth + 1), _context(side)
  result, parameters = _run(
    module, lambda module, *layers: module(layers, context), *layers
  )
  _compare(result, reference(parameters, layers))


@_cases(
  {'hidden': 5, 'bias': False, 'output_norm': True},
  {'factored': False},
  {'factored': False, 'bias': False, 'output_norm': True},
)
def test_linear(options, side, depth):
  config = _config(side, depth, 'linear', options, 'linear')
  _check_read_out(
    linear.Linear(config, side),
    depth,
    side,
    lambda p, layers: references.linear(p, layers, config.side(side)),
  )


@_cases(
  {'activation': 'relu', 'residual': 'top', 'hidden': 5},
  {'activation': 'attention', 'residual': 'none'},
)
def test_iterative(options, side, depth):
  config = _config(side, depth, 'agg', options, 'iterative')
  _check_read_out(
    tree.Iterative(config, side),
    depth,
    side,
    lambda p, layers: references.iterative(
      p, layers, config.side(side), _mask(side), _HEADS
    ),
  )


@pytest.mark.parametrize(
  ('side', 'activation', 'residual', 'top'),
  [
    ('encoder', 'sigmoid', 'top', 0),
    ('decoder', 'relu', 'top', 2),
    ('encoder', 'attention', 'all', 0),
    ('decoder', 'attention', 'top', 1),
  ],
)
def test_agg_node(side, activation, residual, top):
  options = {'activation': activation, 'residual': residual, 'hidden': 7}
  config = _config(side, 6, 'agg', options, 'hierarchical')
  inputs, context = _states(3), _context(side)
  result, parameters = _run(
    tree.AggNode(config, side),
    lambda module, *inputs: module(inputs, top, context),
    *inputs,
  )
  expected = references.agg(
    parameters, inputs, top, config.side(side).agg, _mask(side), _HEADS
  )
  _compare(result, expected)


@_cases({'include_embedding': False, 'norm': 'plain'}, {'norm': 'none'})
def test_average(options, side, depth):
  config = _config(side, depth, 'mlrf', options, 'average')
  _check_read_out(
    average.Average(config, side),
    depth,
    side,
    lambda p, layers: references.average(p, layers, config.side(side)),
  )


class _WithTable(nn.Module):
  """A fusion and the table of both sides, as a model holds them."""

  config: ModelConfig
  side: str
  fusion: type[nn.Module]

  def setup(self):
    self.table = feed_forward.LayerEmbedding(self.config)
    used = self.config.side(self.side).mlrf.layer_embedding
    table = self.table if used else None
    self.inner = self.fusion(self.config, self.side, table)

  def __call__(self, layers, context):
    return self.inner(layers, context)


def _check_with_table(module, name, reference, options, side, depth):
  options = {'hidden': 7, 'scorer_width': 5, **options}
  config = _config(side, depth, 'mlrf', options, name)

  def expected(parameters, layers):
    table = parameters.get('table', {}).get('embedding')
    assert (table is not None) == config.side(side).mlrf.layer_embedding
    return reference(parameters['inner'], layers, config.side(side), table)

  _check_read_out(_WithTable(config, side, module), depth, side, expected)


@_cases(
  {'include_embedding': False, 'norm': 'plain'},
  {'layer_embedding': False, 'norm': 'none'},
)
def test_feed_forward(options, side, depth):
  _check_with_table(
    feed_forward.FeedForwardFusion,
    'feed_forward',
    references.feed_forward,
    options,
    side,
    depth,
  )


@_cases(
  {'hops': 2, 'scorer_activation': 'relu', 'norm': 'plain'},
  {'independent': 'per_layer', 'norm': 'none'},
  {'independent': 'per_hop', 'hops': 3, 'include_embedding': False},
  {'feature_wise': True, 'hops': 2},
  {'feature_wise': True, 'hops': 3, 'independent': 'per_hop'},
  {'feature_wise': True, 'hops': 1, 'independent': 'per_layer'},
  {
    'independent': 'per_layer',
    'include_embedding': False,
    'layer_embedding': False,
    'hops': 1,
  },
)
def test_hops(options, side, depth):
  _check_with_table(hops.Hops, 'hops', references.hops, options, side, depth)


@_cases({'hidden': 5, 'normalize': 'softmax', 'output_norm': True})
def test_dynamic_combination(options, side, depth):
  config = _config(side, depth, 'dynamic', options, 'dynamic_combination')
  _check_read_out(
    dynamic_combination.DynamicCombination(config, side),
    depth,
    side,
    lambda p, layers: references.dynamic_combination(
      p, layers, config.side(side)
    ),
  )


# Routing.

_LITERAL = {'vote_norm': 'none', 'agreement': 'product', 'average': 'gain'}


@_cases(
  {'capsules': 2, 'iterations': 2, 'residual': 'top'},
  {'capsules': 1, 'iterations': 1, 'output_norm': False},
  {'capsules': 4, 'route_axis': 'input'},
  {'capsules': 4, 'route_axis': 'input', 'output_norm': False},
  {'route_gain': 1.0, 'residual': 'all', 'stop_gradient': False, **_LITERAL},
  {'capsules': 4, 'residual': 'none', **_LITERAL},
  {'capsules': 4, 'agreement': 'scaled', 'agreement_scale': 2.0},
  {'capsules': 2, 'vote_norm': 'none', 'average': 'gain'},
  {'vote_hidden': 7, 'vote_activation': 'relu', 'iterations': 4},
  {'vote_projection': 'block', 'capsules': 4},
  {
    'vote_projection': 'block',
    'context': 'own',
    'vote_activation': 'relu',
    'output_norm': False,
  },
)
def test_dynamic_routing(options, side, depth):
  config = _config(side, depth, 'routing', options, 'dynamic_routing')
  _check_read_out(
    dynamic_routing.DynamicRouting(config, side),
    depth,
    side,
    lambda p, layers: references.dynamic_routing(p, layers, config.side(side)),
  )


@_cases(
  {'capsules': 2, 'iterations': 2, 'residual': 'top'},
  {'capsules': 4, 'iterations': 1, 'output_norm': False},
  {'capsules': 4, 'activation': 'per_output', 'residual': 'all'},
  {'activation': 'none', 'betas': 'zero', 'output_norm': False},
  {'temperature': 'hinton', 'iterations': 4, 'vote_hidden': 7},
  {'capsules': 4, 'emit': 'mean', 'log_density_scale': 0.5, 'iterations': 4},
  {'capsules': 4, 'vote_projection': 'block', 'cost_norm': True},
  {
    'vote_projection': 'block',
    'context': 'own',
    'vote_activation': 'none',
    'variance_floor': 0.1,
  },
  {'cost_norm': True, 'capsules': 2, 'output_norm': False, 'iterations': 2},
  {'vote_norm': 'none', 'residual': 'none', 'stop_gradient': False},
  {'vote_norm': 'none', 'floor': 'relative', 'variance_floor': 0.1},
)
def test_em_routing(options, side, depth):
  config = _config(side, depth, 'routing', options, 'em_routing')
  _check_read_out(
    em_routing.EmRouting(config, side),
    depth,
    side,
    lambda p, layers: references.em_routing(p, layers, config.side(side)),
  )


# Connections.


def _layer_functions(count, library):
  """The same layers in JAX's float32 and NumPy's float64."""
  rng = np.random.default_rng(7)
  kernels = rng.normal(0, _WIDTH**-0.5, (count, _WIDTH, _WIDTH))

  def layer(kernel):
    return lambda x: library.tanh(x @ kernel.astype(x.dtype)) + x / 2

  return [layer(kernel) for kernel in kernels]


def _stack(module, embedding, context, functions):
  """H[0..L] and the output, as a stack with these layers has them."""
  layers, carried = (embedding,), ()
  for function in functions:
    x, carried = module.layer_input(layers, carried, context)
    layers = (*layers, module.layer_output(layers, function(x)))
  return layers, module.layer_input(layers, carried, context)[0]


def _check_connection(module, depth, side, reference):
  (embedding,), context = _states(1), _context(side)
  (layers, output), parameters = _run(
    module,
    lambda module, x: _stack(module, x, context, _layer_functions(depth, jnp)),
    embedding,
  )
  expected, states = reference(
    parameters, embedding, _layer_functions(depth, np)
  )
  _compare(output, expected)
  _compare(layers, states)


@_cases(
  {'include_embedding': True},
  {'post_sum_norm': True},
  {'include_embedding': True, 'post_sum_norm': True},
)
def test_dense_connection(options, side, depth):
  config = _config(side, depth, 'dense', options, 'dense')

  def reference(parameters, x, functions):
    states = references.dense_connection(
      parameters, x, functions, config.side(side)
    )
    return states[-1], states

  _check_connection(dense.DenseConnection(config, side), depth, side, reference)


def _check_hierarchical(options, side, depth, norm):
  config = _config(side, depth, 'agg', options, 'hierarchical', norm)
  _check_connection(
    tree.Hierarchical(config, side),
    depth,
    side,
    lambda p, x, functions: references.hierarchical(
      p,
      x,
      functions,
      config.side(side),
      _mask(side),
      _HEADS,
      input_norm=norm == 'pre',
    ),
  )


@_cases(
  {'residual': 'top', 'activation': 'relu'},
  {'group_size': 4, 'residual': 'none'},
  {'group_size': 1, 'residual': 'top'},
  {'feedback': False, 'residual': 'top'},
  {'activation': 'attention', 'group_size': 3},
)
def test_hierarchical_post_norm(options, side, depth):
  _check_hierarchical(options, side, depth, 'post')


@_cases({'feedback': False, 'residual': 'top'})
def test_hierarchical_pre_norm(options, side, depth):
  _check_hierarchical(options, side, depth, 'pre')


def _check_dlcl(options, side, depth, norm):
  config = _config(side, depth, 'dlcl', options, 'dlcl', norm)

  def reference(parameters, x, functions):
    inputs, outputs = references.dlcl(
      parameters, x, functions, config.side(side), norm
    )
    return inputs[-1], outputs

  _check_connection(dlcl.Dlcl(config, side), depth, side, reference)


@_cases(
  {'weights': 'vector', 'start': 'one'}, {'normalize': 'softmax', 'window': 2}
)
def test_dlcl_post_norm(options, side, depth):
  _check_dlcl(options, side, depth, 'post')


@_cases(
  {'weights': 'vector', 'normalize': 'softmax', 'frozen': True}, {'window': 1}
)
def test_dlcl_pre_norm(options, side, depth):
  _check_dlcl(options, side, depth, 'pre')


@pytest.mark.parametrize('norm', ['pre', 'post'])
@pytest.mark.parametrize(
  'options',
  [{'start': 'top'}, {'dilation': 2, 'weights': 'vector'}],
)
def test_depth_weighted_averages(options, norm):
  for side, depth in (('encoder', 3), ('decoder', 6)):
    _check_dlcl({'norms': 'none'} | options, side, depth, norm)


@pytest.mark.parametrize('norm', ['pre', 'post'])
@pytest.mark.parametrize('dilation', [1, 3])
def test_sums_after_some_layers_only(norm, dilation):
  for period in (2, 6):
    _check_dlcl({'period': period, 'dilation': dilation}, 'decoder', 6, norm)


@pytest.mark.parametrize('feature_wise', [False, True])
@pytest.mark.parametrize('depth', [1, 3, 6])
def test_transparent_attention(depth, feature_wise):
  options = {'feature_wise': feature_wise}
  config = _config('encoder', depth, 'transparent', options, 'transparent')
  config = dataclasses.replace(config, decoder_layers=4)
  layers, context = _states(depth + 1), _context('encoder')
  memories, parameters = _run(
    transparent.TransparentAttention(config, 'encoder'),
    lambda module, *layers: module(layers, context),
    *layers,
  )
  assert len(memories) == 4
  expected = references.transparent_attention(
    parameters, layers, config.encoder
  )
  _compare(list(memories), expected)


# Attention.


def _attend(module, context, h, below):
  x = below[-1]
  y = module.attend(x, h, below, context)
  return y, module.residual_input(x, h)


def _check_attention(module, below, h, side, reference):
  context = _context(side)
  result, parameters = _run(
    module,
    lambda module, h, *below: _attend(module, context, h, below),
    h,
    *below,
  )
  _compare(result, reference(parameters))


@pytest.mark.parametrize(
  ('side', 'index', 'options'),
  [
    ('decoder', 1, {'layers': 2}),
    ('encoder', 2, {'layers': 2}),
    ('encoder', 3, {'layers': 2}),
    ('decoder', 3, {'layers': 3}),
    ('decoder', 6, {'layers': 3}),
    ('encoder', 2, {'layers': 4, 'partial': True}),
    ('decoder', 3, {'layers': 4, 'partial': True}),
    ('encoder', 4, {'layers': 4, 'partial': True}),
  ],
)
def test_multi_layer_attention(side, index, options):
  config = _config(side, 6, 'multi_layer', options)
  below = _states(index)
  _check_attention(
    MultiLayerAttention(config, side=side, index=index),
    below,
    below[-1],
    side,
    lambda p: (
      references.multi_layer_attention(
        p, below, config.side(side), _mask(side), _HEADS
      ),
      below[-1],
    ),
  )


@pytest.mark.parametrize(
  ('side', 'index', 'source', 'fused', 'compatible', 'source_norm'),
  [
    ('encoder', 1, 'lexical', False, False, 'auto'),
    ('decoder', 3, 'lexical', True, False, 'plain'),
    ('encoder', 3, 'lexical', True, True, 'auto'),
    ('decoder', 1, 'non_lexical', False, False, 'auto'),
    ('encoder', 2, 'non_lexical', True, False, 'auto'),
    ('decoder', 3, 'non_lexical', False, True, 'auto'),
    ('encoder', 6, 'non_lexical', False, False, 'auto'),
    ('encoder', 6, 'non_lexical', False, False, 'none'),
  ],
)
def test_shortcut_attention(
  side, index, source, fused, compatible, source_norm
):
  options = {
    'source': source,
    'feature_fusion': fused,
    'author_compat': compatible,
    'source_norm': source_norm,
  }
  config = _config(side, 6, 'shortcut', options, norm='pre')
  below = _states(index)
  h = references.layer_norm(below[-1])
  _check_attention(
    ShortcutAttention(config, side=side),
    below,
    h,
    side,
    lambda p: references.shortcut_attention(
      p, below, config.side(side), h, _mask(side), _HEADS
    ),
  )


@pytest.mark.parametrize(('fused', 'bias'), [(False, True), (True, False)])
def test_shortcut_cross_attention(fused, bias):
  options = {'source': 'lexical', 'where': 'both', 'feature_fusion': fused}
  config = dataclasses.replace(
    _config('decoder', 6, 'shortcut', options), attention_bias=bias
  )
  x, features, embedding = _states(3)
  mask = padding_mask(jnp.asarray(_LENGTHS), _LENGTH)

  def attend(module, x, features, embedding):
    return module(x, module.memory(features, embedding), mask, True)

  result, parameters = _run(
    ShortcutAttention(config, side='decoder'), attend, x, features, embedding
  )
  expected = references.shortcut_cross_attention(
    parameters, x, features, embedding, config.decoder, mask, _HEADS
  )
  _compare(result, expected)


# Groups.


@pytest.mark.parametrize(
  ('depth', 'options'),
  [
    (1, {}),
    (3, {}),
    (6, {}),
    (3, {'group_size': 1}),
    (6, {'group_size': 4}),
    (6, {'group_size': 4, 'last_group': 'floor'}),
    (5, {'group_size': 2, 'last_group': 'floor'}),
    (3, {'single_group_norm': True}),
  ],
)
def test_encoder_groups(depth, options):
  config = _config('encoder', depth, 'gtrans', options, 'gtrans')
  _check_read_out(
    EncoderGroups(config, 'encoder'),
    depth,
    'encoder',
    lambda p, layers: references.encoder_groups(p, layers, config.encoder),
  )


@pytest.mark.parametrize(
  ('depth', 'options'),
  [
    (1, {}),
    (3, {}),
    (6, {}),
    (3, {'mode': 'weighted_mean', 'temperature': 0.5}),
    (6, {'mode': 'last', 'group_size': 4}),
    (3, {'group_norm': True, 'group_size': 1}),
    (3, {'last_group': 'floor'}),
    (5, {'group_size': 2, 'last_group': 'floor', 'mode': 'weighted_mean'}),
  ],
)
def test_decoder_groups(depth, options):
  config = _config('decoder', depth, 'gtrans', options, 'gtrans')
  _check_read_out(
    DecoderGroups(config, 'decoder'),
    depth,
    'decoder',
    lambda p, layers: references.decoder_groups(p, layers, config.decoder),
  )


def _prediction(groups, words):
  """Features, log psi, table, bias and targets."""
  rng = np.random.default_rng(3)
  features = rng.normal(size=(groups, _BATCH, _LENGTH, _WIDTH))
  log_psi = references.log_softmax(rng.normal(size=groups))
  table, bias = rng.normal(size=(words, _WIDTH)), rng.normal(size=words)
  targets = rng.integers(0, words, (_BATCH, _LENGTH), np.int32)
  return features, log_psi, table, bias, targets


@pytest.mark.parametrize(
  ('combine', 'groups', 'kept'),
  [('arithmetic', 4, (2, 4)), ('geometric', 3, (1, 2))],
)
def test_mixture(combine, groups, kept):
  features, log_psi, table, bias, _ = _prediction(groups, 7)

  @jax.jit
  def mixture(features, log_psi, table, bias):
    features, log_psi = keep_groups(features, log_psi, kept[0] - 1, kept[1])
    return mixture_log_probabilities(
      features.reshape(len(features), -1, _WIDTH),
      log_psi,
      lambda x: x @ table.T + bias,
      combine,
    )

  result = mixture(*_single((features, log_psi, table, bias)))
  features, log_psi = references.prune(features, log_psi, *kept)
  expected = references.mixture(
    log_psi,
    references.group_log_probabilities(features, table, bias),
    combine,
  )
  _compare(result.reshape(expected.shape), expected)


@pytest.mark.parametrize(
  ('combine', 'groups', 'chunk'), [('arithmetic', 3, 1), ('geometric', 2, 0)]
)
def test_loss_of_groups(combine, groups, chunk):
  features, log_psi, table, bias, targets = _prediction(groups, 7)
  loss = jax.jit(
    lambda features, log_psi, table, bias: cross_entropy(
      features,
      OutputLayer(table, bias),
      jnp.asarray(targets),
      jnp.asarray(_LENGTHS),
      0.1,
      chunk,
      log_psi,
      combine,
    )
  )
  sums = loss(*_single((features, log_psi, table, bias)))
  by_group = references.group_log_probabilities(features, table, bias)
  smoothed = references.group_loss(log_psi, by_group, targets, _KEEP, 0.1)
  mixed = references.mixture(log_psi, by_group, combine)
  chosen = np.take_along_axis(mixed, targets[..., None], -1)[..., 0]
  _compare(
    (sums.loss, sums.negative_log_likelihood),
    (smoothed, -chosen[_KEEP].sum()),
  )
  assert sums.correct == (mixed.argmax(-1) == targets)[_KEEP].sum()
  assert sums.tokens == _KEEP.sum()


# Diversity.


@pytest.mark.parametrize(
  ('sides', 'depths'), [('sum', (3, 6)), ('mean', (1, 3)), ('sum', (1, 1))]
)
def test_diversity(sides, depths):
  encoder, decoder = (_states(n + 1, seed=n) for n in depths)
  ids = np.zeros((_BATCH, _LENGTH), np.int32)
  full = np.full(_BATCH, _LENGTH, np.int32)
  batch = Batch(ids, ids, _LENGTHS, full)

  @jax.jit
  def diversity(encoder, decoder):
    layer = OutputLayer(jnp.zeros((2, _WIDTH)), None)
    output = ModelOutput(decoder[-1], layer, encoder, decoder, encoder[-1])
    training = TrainingConfig(diversity_sides=sides)
    return batch_diversity(output, batch, training, count_tokens(batch))

  result = diversity(*_single((tuple(encoder), tuple(decoder))))
  expected = references.diversity_reward(
    [(encoder, _KEEP), (decoder, np.ones_like(_KEEP))], sides
  )
  _compare(result, expected)
