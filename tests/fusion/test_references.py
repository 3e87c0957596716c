"""Every fusion of the papers against its reference in plain NumPy.

The modules compute in float32, the references in float64. All parameters are
noise: no initialiser's zero or one hides a term.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import reading, without_unread
from flax import linen as nn
from numpy_parts import layer_norm, log_softmax
from references import baselines, dou2018, dou2019, emelin2019, wang2018
from references import yang2022 as yang

from fusion_jax.config import ModelConfig, SideConfig
from fusion_jax.data.batching import Batch
from fusion_jax.fusion import SCHEMES, SOURCES
from fusion_jax.fusion.feed_forward import LayerEmbedding
from fusion_jax.fusion.mixture import keep_groups, mixture_log_probabilities
from fusion_jax.fusion.multi_layer import MultiLayerAttention
from fusion_jax.fusion.shortcuts import ShortcutAttention
from fusion_jax.layers.attention import causal_mask, padding_mask
from fusion_jax.layers.context import Context
from fusion_jax.models.losses import cross_entropy
from fusion_jax.models.transformer import ModelOutput, OutputLayer
from fusion_jax.testing import assert_close
from fusion_jax.training.gradients import batch_diversity, count_tokens

_BATCH, _LENGTH, _WIDTH, _HEADS = 2, 5, 8, 2
_LENGTHS = np.array([5, 3], np.int32)
_KEEP = np.arange(_LENGTH) < _LENGTHS[:, None]


def _model_config(side, depth, name, options, norm='post'):
  """A model whose `side` has `depth` layers and this scheme or source."""
  if name in SOURCES:
    chosen = reading(name, **options)
  else:
    chosen = SideConfig(name, options)
  return ModelConfig(
    width=_WIDTH,
    filter=12,
    heads=_HEADS,
    norm=norm,
    dropout=0.0,
    **{side: without_unread(chosen, side), f'{side}_layers': depth},
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


def _random_layers(count, seed=0):
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


# Schemes: read-outs of H[0..L], and connections of layers.


class _Case(NamedTuple):
  """A scheme with options on one side."""

  scheme: str
  reference: Callable
  side: str
  depth: int
  options: dict[str, Any]
  norm: str = 'post'

  @property
  def config(self) -> ModelConfig:
    return _model_config(
      self.side, self.depth, self.scheme, self.options, self.norm
    )

  def __str__(self) -> str:
    words = [f'{key}={value}' for key, value in self.options.items()]
    return '-'.join(
      [self.scheme, self.norm, self.side, str(self.depth), *words]
    )


def _cases(scheme, reference, *variants, norm='post', **first):
  """The first options at every depth, each of the variants at one."""
  places = [('decoder', 1), ('encoder', 3), ('decoder', 6)]
  return [
    *(_Case(scheme, reference, *place, first, norm) for place in places),
    *(
      _Case(scheme, reference, ('decoder', 'encoder')[n % 2], 3, options, norm)
      for n, options in enumerate(variants)
    ),
  ]


def _on_side(side, scheme, reference, *places):
  return [
    _Case(scheme, reference, side, depth, dict(*options))
    for depth, *options in places
  ]


def _iterative(parameters, layers, options, side):
  return dou2018.iterative(parameters, layers, options, _mask(side), _HEADS)


_LITERAL = {'vote_norm': 'none', 'agreement': 'product', 'average': 'sum'}
_TABLE = {'hidden': 7}
_HOPS = {'hidden': 7, 'scorer_width': 5}
_READ_OUTS = [
  *_cases('linear', dou2018.linear, {'hidden': 5}, {'factored': False}),
  *_cases(
    'iterative',
    _iterative,
    {'activation': 'relu', 'residual': 'top', 'hidden': 5},
    {'activation': 'attention', 'residual': 'none'},
  ),
  *_cases('dynamic_combination', dou2019.dynamic_combination, {'hidden': 5}),
  *_cases(
    'dynamic_routing',
    dou2019.dynamic_routing,
    {'capsules': 2, 'iterations': 2, 'residual': 'all'},
    {'capsules': 1, 'iterations': 1},
    {'residual': 'all', 'stop_gradient': False, **_LITERAL},
    {'capsules': 4, 'residual': 'none', **_LITERAL},
    {'capsules': 2, 'vote_norm': 'none', 'average': 'sum'},
    {'capsules': 2, 'agreement': 'product', 'iterations': 4},
    {'vote_projection': 'block', 'capsules': 4},
    {'vote_projection': 'block', 'context': 'own'},
  ),
  *_cases(
    'em_routing',
    dou2019.em_routing,
    {'capsules': 2, 'iterations': 2, 'residual': 'none'},
    {'capsules': 4, 'iterations': 1, 'residual': 'all'},
    {'iterations': 4, 'variance_floor': 1e-2},
    {'capsules': 4, 'vote_projection': 'block'},
    {'vote_projection': 'block', 'context': 'own', 'variance_floor': 1.0},
    {'vote_norm': 'none', 'residual': 'none', 'stop_gradient': False},
  ),
  *_cases(
    'average',
    wang2018.average,
    {'include_embedding': False, 'norm': 'plain'},
    {'norm': 'none'},
  ),
  *_cases(
    'feed_forward',
    wang2018.feed_forward,
    {'include_embedding': False, 'norm': 'plain', **_TABLE},
    {'layer_embedding': False, 'norm': 'none', **_TABLE},
    **_TABLE,
  ),
  *_cases(
    'hops',
    wang2018.hops,
    {'hops': 2, 'norm': 'plain', **_HOPS},
    {'independent': 'per_layer', 'norm': 'none', **_HOPS},
    {'independent': 'per_hop', 'hops': 3, 'include_embedding': False, **_HOPS},
    {'layer_embedding': False, 'hops': 1, **_HOPS},
    **_HOPS,
  ),
  *_on_side(
    'encoder',
    'gtrans',
    yang.encoder_groups,
    *[(1,), (3,), (6,), (3, {'group_size': 1}), (6, {'group_size': 4})],
    (6, {'group_size': 4, 'last_group': 'floor'}),
    (5, {'group_size': 2, 'last_group': 'floor'}),
    (3, {'single_group_norm': True}),
  ),
  *_on_side(
    'decoder',
    'gtrans',
    yang.decoder_groups,
    *[(1,), (3,), (6,), (3, {'group_size': 1})],
    (3, {'mode': 'weighted_mean', 'temperature': 0.5}),
    (6, {'mode': 'last', 'group_size': 4}),
    (3, {'last_group': 'floor'}),
    (5, {'group_size': 2, 'last_group': 'floor', 'mode': 'weighted_mean'}),
  ),
  *_on_side(
    'encoder',
    'transparent',
    baselines.transparent_attention,
    *[(1,), (3,), (6,)],
    *[(depth, {'feature_wise': True}) for depth in (1, 6)],
  ),
]


class _ReadOut(nn.Module):
  """A fusion, and the table of layer embeddings where it reads one."""

  config: ModelConfig
  side: str

  def setup(self):
    chosen = self.config.side(self.side)
    scheme = SCHEMES[chosen.fusion]
    arguments = [self.config, self.side]
    if scheme.reads_layer_embedding(self.config, self.side):
      self.table = LayerEmbedding(self.config)
      arguments.append(self.table)
    self.inner = scheme.modules[self.side](*arguments)

  def __call__(self, layers, context):
    return self.inner(layers, context)


@pytest.mark.parametrize('case', _READ_OUTS, ids=str)
def test_read_out(case):
  config, context = case.config, _context(case.side)
  options = config.side(case.side).options
  layers = _random_layers(case.depth + 1)
  result, parameters = _run(
    _ReadOut(config, case.side),
    lambda module, *layers: module(layers, context),
    *layers,
  )
  others = ()
  if case.reference in (wang2018.feed_forward, wang2018.hops):
    table = parameters.get('table', {}).get('embedding')
    assert (table is not None) == options.layer_embedding
    others = (table,)
  if case.reference is _iterative:
    others = (case.side,)
  inner = parameters.get('inner', {})
  _compare(result, case.reference(inner, layers, options, *others))


def _dense(parameters, x, functions, case):
  states = dou2018.dense_connection(x, functions)
  return states[-1], states


def _hierarchical(parameters, x, functions, case):
  options = case.config.side(case.side).options
  return dou2018.hierarchical(
    parameters,
    x,
    functions,
    options,
    _mask(case.side),
    _HEADS,
    input_norm=case.norm == 'pre',
  )


def _dlcl(parameters, x, functions, case):
  options = case.config.side(case.side).options
  inputs, outputs = baselines.dlcl(parameters, x, functions, options, case.norm)
  return inputs[-1], outputs


_AVERAGES = {'norms': 'none'}
_CONNECTIONS = [
  *_cases('dense', _dense),
  *_cases(
    'hierarchical',
    _hierarchical,
    {'residual': 'top', 'activation': 'relu'},
    {'group_size': 4, 'residual': 'none'},
    {'group_size': 1, 'residual': 'top'},
    {'feedback': False, 'residual': 'top'},
    {'activation': 'attention', 'group_size': 3},
  ),
  *_cases(
    'hierarchical',
    _hierarchical,
    {'feedback': False, 'residual': 'top'},
    norm='pre',
  ),
  *_cases(
    'dlcl',
    _dlcl,
    {'start': 'one', 'window': 2},
    {'first': 'learned'},
    {'period': 2, 'dilation': 3},
    {'dilation': 2, **_AVERAGES},
  ),
  *_cases(
    'dlcl',
    _dlcl,
    {'frozen': True},
    {'window': 1},
    {'period': 3},
    {'start': 'top', **_AVERAGES},
    norm='pre',
  ),
  *_cases('dlcl', _dlcl, {'start': 'one'}, norm='rezero'),
  *(
    _Case('dlcl', _dlcl, 'decoder', 6, options, norm)
    for norm in ('pre', 'post')
    for options in (
      {'period': 2, 'dilation': 3},
      {'period': 6},
      {'dilation': 2, **_AVERAGES},
    )
  ),
]


def _layer_functions(count, library):
  """The same layers in JAX's float32 and NumPy's float64."""
  rng = np.random.default_rng(7)
  kernels = rng.normal(0, _WIDTH**-0.5, (count, _WIDTH, _WIDTH))

  def layer(kernel):
    return lambda x: library.tanh(x @ kernel.astype(x.dtype)) + x / 2

  return [layer(kernel) for kernel in kernels]


def _stack(module, embedding, context, functions):
  """The output and H[0..L], as a stack with these layers has them."""
  layers, carried = (embedding,), ()
  for function in functions:
    x, carried = module.layer_input(layers, carried, context)
    layers = (*layers, module.layer_output(layers, function(x)))
  return module.layer_input(layers, carried, context)[0], layers


@pytest.mark.parametrize('case', _CONNECTIONS, ids=str)
def test_connection(case):
  (embedding,), context = _random_layers(1), _context(case.side)
  functions = _layer_functions(case.depth, jnp)
  module = SCHEMES[case.scheme].modules[case.side]
  result, parameters = _run(
    module(case.config, case.side),
    lambda module, x: _stack(module, x, context, functions),
    embedding,
  )
  functions = _layer_functions(case.depth, np)
  _compare(result, case.reference(parameters, embedding, functions, case))


# Attention that reads more than the layer below.


def _check_attention(module, below, h, side, reference):
  context = _context(side)

  def attend(module, h, *below):
    y = module.attend(below[-1], h, below, context)
    return y, h if module.residual_from_norm else below[-1]

  result, parameters = _run(module, attend, h, *below)
  _compare(result, reference(parameters))


@pytest.mark.parametrize(
  ('side', 'index', 'read', 'residual', 'norm'),
  [
    ('decoder', 1, 2, 'all', 'post'),
    ('encoder', 2, 2, 'all', 'post'),
    ('encoder', 3, 2, 'top', 'post'),
    ('decoder', 3, 3, 'all', 'post'),
    ('decoder', 6, 3, 'all', 'post'),
    ('encoder', 4, 3, 'top', 'pre'),
  ],
)
def test_multi_layer_attention(side, index, read, residual, norm):
  options = {'layers': read, 'residual': residual}
  config = _model_config(side, 6, 'multi_layer', options, norm)
  below = _random_layers(index)
  h, options = 0.3 * below[-1], config.side(side).attention_options
  _check_attention(
    MultiLayerAttention(config, side=side, index=index),
    below,
    h,
    side,
    lambda p: (
      dou2018.multi_layer_attention(
        *(p, below, h, options, _mask(side), _HEADS), input_norm=norm == 'pre'
      ),
      below[-1],
    ),
  )


@pytest.mark.parametrize(
  ('side', 'index', 'source', 'fused', 'compatible', 'source_norm'),
  [
    ('encoder', 1, 'lexical', False, False, 'auto'),
    ('decoder', 3, 'lexical', True, False, 'auto'),
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
  config = _model_config(side, 6, 'shortcut', options, norm='pre')
  below = _random_layers(index)
  h, options = layer_norm(below[-1]), config.side(side).attention_options
  _check_attention(
    ShortcutAttention(config, side=side),
    below,
    h,
    side,
    lambda p: emelin2019.shortcut_attention(
      p, below, options, h, _mask(side), _HEADS
    ),
  )


@pytest.mark.parametrize(('fused', 'bias'), [(False, True), (True, False)])
def test_shortcut_cross_attention(fused, bias):
  options = {'source': 'lexical', 'where': 'both', 'feature_fusion': fused}
  config = _model_config('decoder', 6, 'shortcut', options)
  config = dataclasses.replace(config, attention_bias=bias)
  inputs, mask = _random_layers(3), padding_mask(jnp.asarray(_LENGTHS), _LENGTH)

  def attend(module, x, features, embedding):
    return module(x, module.memory(features, embedding), mask, True)

  module = ShortcutAttention(config, side='decoder')
  result, parameters = _run(module, attend, *inputs)
  options = config.decoder.attention_options
  expected = emelin2019.shortcut_cross_attention(
    parameters, *inputs, options, mask, _HEADS
  )
  _compare(result, expected)


# Losses and predictions.


@pytest.mark.parametrize('depths', [(3, 6), (1, 1)])
def test_diversity(depths):
  encoder, decoder = (_random_layers(n + 1, seed=n) for n in depths)
  ids = np.zeros((_BATCH, _LENGTH), np.int32)
  full = np.full(_BATCH, _LENGTH, np.int32)
  batch = Batch(ids, ids, _LENGTHS, full)

  @jax.jit
  def diversity(encoder, decoder):
    layer = OutputLayer(jnp.zeros((2, _WIDTH)), None)
    output = ModelOutput(decoder[-1], layer, encoder, decoder, encoder[-1])
    return batch_diversity(output, batch, count_tokens(batch))

  result = diversity(*_single((tuple(encoder), tuple(decoder))))
  expected = dou2018.diversity_reward(
    [(encoder, _KEEP), (decoder, np.ones_like(_KEEP))]
  )
  _compare(result, expected)


def _prediction(groups, words):
  """Features, log psi, table, bias and targets."""
  rng = np.random.default_rng(3)
  features = rng.normal(size=(groups, _BATCH, _LENGTH, _WIDTH))
  log_psi = log_softmax(rng.normal(size=groups))
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
  features, log_psi = yang.prune(features, log_psi, *kept)
  by_group = yang.group_log_probabilities(features, table, bias)
  expected = yang.mixture(log_psi, by_group, combine)
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
  by_group = yang.group_log_probabilities(features, table, bias)
  smoothed = yang.group_loss(log_psi, by_group, targets, _KEEP, 0.1)
  mixed = yang.mixture(log_psi, by_group, combine)
  chosen = np.take_along_axis(mixed, targets[..., None], -1)[..., 0]
  expected = smoothed, -chosen[_KEEP].sum()
  _compare((sums.loss, sums.negative_log_likelihood), expected)
  assert sums.correct == (mixed.argmax(-1) == targets)[_KEEP].sum()
  assert sums.tokens == _KEEP.sum()
