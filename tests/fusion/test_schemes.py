"""What holds for every scheme, side and option (the table of `cases`)."""

import dataclasses
import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beams import changing_rows
from cases import CASES, parameters
from drawn import drawn_parameters
from rounding import assert_close

from fusion_jax.config.fusion import RULES, SideConfig
from fusion_jax.fusion import SCHEMES
from fusion_jax.fusion.gtrans import group_count, mixture_log_probabilities
from fusion_jax.layers.context import Context
from fusion_jax.models.losses import cross_entropy
from fusion_jax.models.transformer import (
  Transformer,
  output_logits,
  shift_right,
)

_VOCABULARY, _START, _ROWS, _SOURCE, _TARGET = 11, 2, 2, 5, 3
_LENGTHS = jnp.array([5, 3])
_TARGET_LENGTHS = jnp.array([3, 2])


def _inputs():
  random = np.random.default_rng(0)
  source = random.integers(3, _VOCABULARY, (_ROWS, _SOURCE)).astype(np.int32)
  target = random.integers(3, _VOCABULARY, (_ROWS, _TARGET)).astype(np.int32)
  return source, target


def _model(config) -> Transformer:
  return Transformer(config, _VOCABULARY, _VOCABULARY, _START)


def _log_probabilities(output, combine):
  if output.log_weights is None:
    rows = output.features.reshape(-1, output.features.shape[-1])
    logits = jax.nn.log_softmax(output_logits(rows, output.output))
  else:
    groups = len(output.log_weights)
    rows = output.features.reshape(groups, -1, output.features.shape[-1])
    logits = mixture_log_probabilities(
      rows,
      output.log_weights,
      functools.partial(output_logits, output=output.output),
      combine,
    )
  return logits.reshape(*output.features.shape[-3:-1], -1)


class _Fused:
  """A model of the table with what the tests ask of it, each compiled once."""

  def __init__(self, config):
    self.config = config
    self.model = _model(config)
    self.parameters = drawn_parameters(self.model)
    self._forward = jax.jit(self._plain_forward)

  def _plain_forward(self, parameters, source, target):
    output = self.model.apply({'params': parameters}, source, _LENGTHS, target)
    combine = self.config.decoder.gtrans.combine
    return _log_probabilities(output, combine)

  def forward(self, source, target, parameters=None):
    parameters = parameters or self.parameters
    return np.asarray(self._forward(parameters, source, target))

  def scaled(self, scale):
    """The parameters with embeddings of that scale."""
    table = scale * self.parameters['source_embedding']
    return self.parameters | {'source_embedding': table}

  def stacks(self, source, target):
    """Features of both stacks for such H[0], where all positions meet."""

    def run(module, source, target):
      mask = jnp.ones((_ROWS, 1, 1, _SOURCE), bool)
      encoded = module.encoder(source, Context(mask, True))
      memories = module.decoder.memories(encoded, mask)
      context = Context(mask[..., :_TARGET], True, memory_mask=mask)
      decoded = module.decoder(target, context, memories)
      return encoded.features, decoded.features

    variables = {'params': self.parameters}
    return self.model.apply(variables, source, target, method=run)

  def eager(self, source, target):
    inputs = map(jnp.asarray, (source, target))
    return np.asarray(self._plain_forward(self.parameters, *inputs))


@pytest.fixture(scope='module', params=parameters())
def fused(request):
  return _Fused(CASES[request.param])


# test_aggregate has the gradients of every formula and option; here are each
# scheme and plug point, and what no gradient reaches.
_SAMPLED = [
  *SCHEMES,
  *(name for name in CASES if name.startswith(('multi_layer', 'shortcut'))),
  *('dlcl-options-1', 'gtrans-options-1', 'gtrans-options-2', 'scan-linear'),
]
_FEW = 'gtrans', 'shortcut-both'


@pytest.fixture(scope='module', params=parameters(_SAMPLED, _FEW))
def sampled(request):
  return _Fused(CASES[request.param])


def test_every_scheme_side_and_option_is_in_the_table():
  sides = [side for c in CASES.values() for side in (c.encoder, c.decoder)]
  assert SCHEMES.keys() == RULES.keys()
  used = {
    (name, side)
    for config in CASES.values()
    for side in ('encoder', 'decoder')
    for name in [config.side(side).fusion]
  }
  for name, scheme in SCHEMES.items():
    assert {(name, side) for side in scheme.modules} <= used
  for field in dataclasses.fields(SideConfig):
    if dataclasses.is_dataclass(field.default):
      _every_choice_is_used([getattr(side, field.name) for side in sides])


def _every_choice_is_used(values):
  hints = typing.get_type_hints(type(values[0]))
  for name, hint in hints.items():
    if name == '__pydantic_config__':
      continue
    seen = {getattr(value, name) for value in values}
    choices = {True, False} if hint is bool else set(typing.get_args(hint))
    assert choices <= seen, f'{type(values[0]).__name__}.{name}'
    assert len(seen) > 1, f'{type(values[0]).__name__}.{name} never changes'


def test_log_probabilities_are_finite_and_normalised(fused):
  got = fused.forward(*_inputs())
  assert got.shape == (_ROWS, _TARGET, _VOCABULARY)
  assert np.isfinite(got).all()
  total = np.exp(got).sum(-1)
  if fused.config.decoder.gtrans.combine == 'arithmetic':
    np.testing.assert_allclose(total, 1, rtol=1e-5)
  else:
    assert (total <= 1 + 1e-5).all()


def test_features_move_with_their_positions(sampled):
  # Without positional encodings and the causal mask no position is special.
  random = np.random.default_rng(3)
  orders = np.array([3, 1, 4, 0, 2]), np.array([2, 0, 1])
  states = [random.normal(size=(len(order), 8)) for order in orders]
  # Once as they are and once moved: rows have nothing to do with each other.
  rows = [
    jnp.float32([x, x[order]]) for x, order in zip(states, orders, strict=True)
  ]
  for features, order in zip(sampled.stacks(*rows), orders, strict=True):
    before, after = features[..., 0, :, :], features[..., 1, :, :]
    assert before.shape[-2:] == (len(order), 8)
    assert_close(before[..., order, :], after)


def test_a_later_token_changes_nothing_before_it(fused):
  source, target = _inputs()
  before = fused.forward(source, target)
  changed = target.copy()
  changed[:, 1] = 3 + (changed[:, 1] - 2) % 8
  after = fused.forward(source, changed)
  # Token 1 is the input of position 2.
  assert_close(before[:, :2], after[:, :2])
  assert np.abs(before[:, 2] - after[:, 2]).max() > 1e-5


def test_padding_and_other_rows_change_nothing(fused):
  source, target = _inputs()
  before = fused.forward(source, target)
  padded = source.copy()
  padded[1, 3:] = 4
  assert_close(before, fused.forward(padded, target))
  other = source.copy(), target.copy()
  other[0][0], other[1][0] = 5, 6
  assert_close(before[1], fused.forward(*other)[1])


@pytest.mark.parametrize('name', parameters(SCHEMES, ['em_routing']))
def test_compiled_equals_eager(name):
  fused, inputs = _Fused(CASES[name]), _inputs()
  assert_close(fused.forward(*inputs), fused.eager(*inputs))


def test_extreme_inputs_stay_finite(fused):
  for scale in (0.0, 1e-6, 1e3):
    got = fused.forward(*_inputs(), parameters=fused.scaled(scale))
    assert np.isfinite(got).all(), scale


def test_cached_decoding_equals_the_full_pass(fused):
  source, target = _inputs()
  targets = np.stack([target, target[::-1]])
  full = [fused.forward(source, each) for each in targets]
  beam = len(targets)

  def decode(parameters, source, targets):
    def apply(*args, method):
      return fused.model.apply({'params': parameters}, *args, method=method)

    encoded = apply(source, _LENGTHS, method='encode')
    cache, memory = apply(
      encoded, _LENGTHS, beam, _TARGET, method='start_decoding'
    )

    scores = []
    inputs = jnp.stack([shift_right(each, _START) for each in targets], 1)
    for position in range(_TARGET):
      # The hypotheses change their rows at every position.
      order, rows = changing_rows(position, beam, _TARGET)
      now, cache = apply(
        inputs[:, order, position],
        jnp.int32(position),
        jnp.tile(rows, (len(inputs), 1, 1)),
        cache,
        memory,
        method='decode_step',
      )
      scores.append(now[:, np.argsort(order)])
    return jnp.stack(scores)

  inputs = map(jnp.asarray, (source, targets))
  scores = decode(fused.parameters, *inputs)
  if not fused.model.gives_log_probabilities:
    scores = jax.nn.log_softmax(scores)
  for hypothesis in range(beam):
    assert_close(scores[:, :, hypothesis].swapaxes(0, 1), full[hypothesis])


def _loss(fused, parameters, config=None):
  model = _model(config or fused.config)
  source, target = map(jnp.asarray, _inputs())
  output = model.apply(
    {'params': parameters},
    source,
    _LENGTHS,
    target,
    False,
    rngs={'dropout': jax.random.key(0)},
  )
  return cross_entropy(
    output.features,
    output.output,
    target,
    _TARGET_LENGTHS,
    0.1,
    0,
    output.log_weights,
    fused.config.decoder.gtrans.combine,
  ).loss


def _has_no_gradient(config, name: str) -> bool:
  """What no gradient can reach, by definition.

  Frozen weights; key biases, which the softmax over keys cancels; the weight
  of an only group, which a softmax makes 1; layers above the last group where
  left-over ones belong to none.
  """
  frozen = {
    f'{side}/connection/weights'
    for side in ('encoder', 'decoder')
    if config.side(side).dlcl.frozen
  }
  left_over = config.decoder.gtrans.last_group == 'floor'
  alone = group_count(config, 'decoder') == 1
  return (
    name.endswith('key/bias')
    or name in frozen
    or (alone and name.endswith('group_weights'))
    or (left_over and name.startswith('decoder/layer_2/'))
  )


def test_gradients_are_finite_and_reach_every_parameter(sampled):
  # Not compiled as a whole, which takes longer than all it computes.
  gradient = jax.grad(lambda parameters: _loss(sampled, parameters))
  for path, leaf in jax.tree_util.tree_leaves_with_path(
    gradient(sampled.parameters)
  ):
    name = '/'.join(part.key for part in path)
    assert np.isfinite(leaf).all(), name
    if not _has_no_gradient(sampled.config, name):
      assert np.abs(leaf).max() > 0, name


_HALF = parameters(
  [*SCHEMES, 'multi_layer-2', 'shortcut'],
  ['em_routing'],
)


def _in_bfloat16(name):
  return _Fused(dataclasses.replace(CASES[name], compute_dtype='bfloat16'))


@pytest.mark.parametrize('name', _HALF)
def test_bfloat16_is_close_to_float32(name):
  close = _in_bfloat16(name).forward(*_inputs())
  assert np.isfinite(close).all()
  exact = _Fused(CASES[name]).forward(*_inputs())
  np.testing.assert_allclose(close, exact, atol=0.25)


@pytest.mark.parametrize('name', parameters(SCHEMES, []))
def test_gradients_in_bfloat16_are_finite(name):
  half = _in_bfloat16(name)
  for scale in (1.0, 0.0):
    gradient = jax.grad(functools.partial(_loss, half))
    for leaf in jax.tree.leaves(gradient(half.scaled(scale))):
      assert np.isfinite(leaf).all(), scale
