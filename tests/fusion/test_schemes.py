"""What holds for every scheme, side and option (the table of `cases`)."""

import dataclasses
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, parameters
from tiers import extended_but

from fusion_jax import testing
from fusion_jax.config.section import fields_of_section
from fusion_jax.fusion import SCHEMES, SOURCES
from fusion_jax.fusion.scheme import predictions_of
from fusion_jax.layers.context import Context
from fusion_jax.layers.sow import cross_attention_weights
from fusion_jax.models.transformer import Transformer
from fusion_jax.testing import FusedModel, assert_close

_ROWS, _SOURCE, _TARGET = 2, 5, 3


def _stacks(fused, source, target):
  """Features of both stacks for such H[0], where all positions meet."""

  def run(module, source, target):
    mask = jnp.ones((_ROWS, 1, 1, _SOURCE), bool)
    encoded = module.encoder(source, Context(mask, True))
    encoded = encoded._replace(embeddings=source)
    memories = module.decoder.memories(encoded, mask)
    context = Context(mask[..., :_TARGET], True, memory_mask=mask)
    decoded = module.decoder(target, context, memories)
    return encoded.features, decoded.features

  variables = {'params': fused.parameters}
  return fused.model.apply(variables, source, target, method=run)


# test_starts has the starts of all schemes, and test_references the options
# of their formulas; they change one position alone.
_WITH_OPTIONS = (
  *('dlcl', 'gtrans', 'hierarchical', 'iterative', 'surface_fusion'),
  'transparent',
)
_PASSES = [
  name
  for name in CASES
  if not name.endswith('-start')
  and ('-options-' not in name or name.startswith(_WITH_OPTIONS))
]


@pytest.fixture(scope='module', params=parameters(_PASSES))
def fused(request):
  return FusedModel(CASES[request.param])


# The gradients of each scheme and plug point, and what no gradient reaches.
_SAMPLED = [
  *SCHEMES,
  *('multi_layer-3-attention', 'multi_layer-pre', 'shortcut-both'),
  *('shortcut-non_lexical-pre', 'scan-linear', 'untied'),
  *('dlcl-options-1', 'gtrans-options-1'),
  *('surface_fusion-options-1', 'surface_fusion-options-2'),
]


@pytest.fixture(scope='module', params=parameters(_SAMPLED, ['dense']))
def sampled(request):
  return FusedModel(CASES[request.param])


def test_every_scheme_side_and_option_is_in_the_table():
  used, values = set(), {}
  for config in CASES.values():
    for name in ('encoder', 'decoder'):
      side = config.side(name)
      used.add((side.fusion, name))
      for options in (side.options, side.attention_options):
        for field in fields_of_section(type(options)):
          place = _declared_by(type(options), field), field
          values.setdefault(place, set()).add(getattr(options, field))
  for name, scheme in SCHEMES.items():
    assert {(name, side) for side in scheme.modules} <= used
  for row in (*SCHEMES.values(), *SOURCES.values()):
    for field in fields_of_section(row.options):
      place = _declared_by(row.options, field), field
      hint = fields_of_section(row.options)[field].annotation
      choices = {True, False} if hint is bool else {*typing.get_args(hint)}
      assert choices <= values[place], place
      assert len(values[place]) > 1, place


def _declared_by(options, field):
  """The class that an option is inherited from."""
  return next(
    kind.__name__
    for kind in reversed(options.__mro__)
    if field in getattr(kind, '__pydantic_fields__', {})
  )


def test_log_probabilities_are_finite_and_normalised(fused):
  testing.check_probabilities(fused)


def test_features_move_with_their_positions(sampled):
  # Without positional encodings and the causal mask no position is special.
  random = np.random.default_rng(3)
  orders = np.array([3, 1, 4, 0, 2]), np.array([2, 0, 1])
  states = [random.normal(size=(len(order), 8)) for order in orders]
  # Once as they are and once moved: rows have nothing to do with each other.
  rows = [
    jnp.float32([x, x[order]]) for x, order in zip(states, orders, strict=True)
  ]
  for features, order in zip(_stacks(sampled, *rows), orders, strict=True):
    before, after = features[..., 0, :, :], features[..., 1, :, :]
    assert before.shape[-2:] == (len(order), 8)
    assert_close(before[..., order, :], after)


def test_a_later_token_changes_nothing_before_it(fused):
  testing.check_causality(fused)


def test_padding_and_other_rows_change_nothing(fused):
  testing.check_padding(fused)


def test_extreme_inputs_stay_finite(fused):
  testing.check_extreme_inputs(fused)


def test_cached_decoding_equals_the_full_pass(fused):
  testing.check_cached_decoding(fused)


def _has_no_gradient(config, name: str) -> bool:
  """What no gradient can reach, by definition.

  Frozen weights; the weight of an only group, which a softmax makes 1; layers
  above the last group where left-over ones belong to none.
  """
  frozen = {
    f'{side}/connection/weights'
    for side in ('encoder', 'decoder')
    if getattr(config.side(side).options, 'frozen', False)
  }
  options = config.decoder.options
  left_over = getattr(options, 'last_group', '') == 'floor'
  mixed = predictions_of(config)
  alone = mixed is not None and mixed.total == 1
  return (
    name in frozen
    or (alone and name.endswith('group_weights'))
    or (left_over and name.startswith('decoder/layer_2/'))
  )


def test_gradients_are_finite_and_reach_every_parameter(sampled):
  testing.check_gradients(sampled, _has_no_gradient)


_HALF = parameters(
  ['em_routing', 'gtrans', 'multi_layer-2', 'shortcut', 'surface_fusion'],
  ['em_routing'],
)


@pytest.mark.parametrize('name', _HALF)
def test_bfloat16_is_close_to_float32(name):
  testing.check_bfloat16(FusedModel(CASES[name]))


# Where something is divided by a size or a variance.
_DIVIDING = 'hierarchical', 'dynamic_routing', 'em_routing', 'untied'


@pytest.mark.extended
@pytest.mark.parametrize('name', _DIVIDING)
def test_gradients_in_bfloat16_are_finite(name):
  half = FusedModel(dataclasses.replace(CASES[name], compute_dtype='bfloat16'))
  # Embeddings of 0 are the hardest: norms divide by nothing.
  for leaf in jax.tree.leaves(half.gradient(half.scaled(0.0))):
    assert np.isfinite(leaf).all()


# The weights of cross-attention.

_IDS = jnp.array([[4, 5, 6, 7, 3], [8, 9, 3, 0, 0]])
_LENGTHS = jnp.array([5, 3])
_OUTPUTS = jnp.array([[7, 6, 3], [9, 8, 3]])


def _weights(config, deterministic=True):
  model = Transformer(config, 11, 11, 2)
  key = jax.random.key(0)
  variables = model.init(key, _IDS, _LENGTHS, _OUTPUTS)
  _, kept = model.apply(
    {'params': variables['params']},
    _IDS,
    _LENGTHS,
    _OUTPUTS,
    deterministic,
    rngs={'dropout': key},
    mutable=['attention'],
  )
  return cross_attention_weights(kept['attention'])


# Other fusions are no matter of what is in the layers.
_WITH_ATTENTION = 'gtrans', 'multi_layer', 'shortcut', 'scan', 'dlcl', 'dense'


@pytest.mark.parametrize(
  'name',
  parameters(
    [name for name in CASES if name.startswith(_WITH_ATTENTION)],
    ['gtrans', 'multi_layer-2', 'shortcut-both'],
  ),
)
def test_every_model_hands_out_its_weights(name):
  # In training, where all groups of a decoder run.
  config = CASES[name]
  seen = jax.eval_shape(lambda: _weights(config, deterministic=False))
  layers = config.decoder_layers
  assert (seen.shape, seen.dtype) == ((layers, 2, 2, 3, 5), jnp.float32)


@pytest.mark.parametrize(
  ('name', 'layers'),
  extended_but(
    [
      ('multi_layer-gtrans', 3),
      ('gtrans-options-2', 2),
      ('scan-shortcut-cross', 3),
      ('remat-hierarchical', 3),
    ],
    [('gtrans-options-2', 2)],
  ),
)
def test_weights_are_distributions_over_the_source(name, layers):
  # 'gtrans-options-2' predicts with the first group, which has two layers.
  weights = np.asarray(jax.jit(lambda: _weights(CASES[name]))())
  assert weights.shape == (layers, 2, 2, 3, 5)
  np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
  assert not weights[:, 1, ..., 3:].any()
