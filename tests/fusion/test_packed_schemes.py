"""Packed rows give every sentence what it gets alone, under every scheme."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES

from fusion_jax.data.batching import Shape, assemble
from fusion_jax.fusion.mixture import token_mixture
from fusion_jax.models.transformer import Transformer
from fusion_jax.testing import drawn_parameters
from fusion_jax.training.gradients import batch_loss

# The short run has the masks of segments.
pytestmark = pytest.mark.extended

_VOCABULARY, _START = 11, 2
# Source and target lengths of three sentences in a row. The second row has
# other tokens in the middle one; the others are empty.
_LENGTHS = [(4, 3), (2, 5), (3, 1)]
_MIDDLE = 1
_COUNTS = np.array([3, 3, 0, 0, 0, 0])
# Also of the sentences alone: JAX compiles each operation for a shape once.
_SHAPE = Shape(6, 10, 11)
# The first target position of each: after 3 and 3 + 5 tokens.
_STARTS = [0, 3, 8]


class _Pair(NamedTuple):
  source: np.ndarray
  target: np.ndarray


def _pairs():
  """The sentences of both rows."""
  random = np.random.default_rng(0)
  first = [
    _Pair(*(random.integers(3, _VOCABULARY, n).astype(np.int32) for n in sizes))
    for sizes in _LENGTHS
  ]
  second = list(first)
  second[_MIDDLE] = _Pair(*(3 + (side - 2) % 8 for side in first[_MIDDLE]))
  return first + second


class _Fused:
  """A model with random parameters everywhere, and its passes."""

  def __init__(self, config):
    self.combine = config.decoder.combine
    self._model = Transformer(config, _VOCABULARY, _VOCABULARY, _START)
    self._parameters = drawn_parameters(self._model)

  def alone(self):
    """The output for every sentence in a row of its own."""
    return self._loss(self._parameters, assemble(_pairs(), _SHAPE))[1]

  def packed(self):
    """Gradient, sums and output for the packed sentences."""
    batch = assemble(_pairs(), _SHAPE, _COUNTS)

    def loss(parameters):
      sums, output = self._loss(parameters, batch)
      return sums.loss, (sums, output)

    # Not compiled as a whole, which takes longer than all it computes.
    gradient, (sums, output) = jax.grad(loss, has_aux=True)(self._parameters)
    return gradient, sums, output

  def _loss(self, parameters, batch):
    batch = jax.tree.map(jnp.asarray, batch)
    return batch_loss(self._model, parameters, batch, 0.1, 0)


# What happens at one position has nothing to do with who sees whom: of the
# layer aggregations, some.
_WITH_OTHERS = [
  *('linear', 'em_routing', 'gtrans', 'transparent', 'dlcl', 'learned'),
  *('surface_fusion', 'surface_fusion-options-1'),
  *('multi_layer-2', 'multi_layer-3-attention', 'multi_layer-gtrans'),
  *('shortcut', 'shortcut-both', 'shortcut-non_lexical', 'shortcut-cross'),
]


@pytest.fixture(scope='module', params=_WITH_OTHERS)
def fused(request):
  return _Fused(CASES[request.param])


def _log_probability(output, features, target, combine):
  """log p of a sentence from its features, [*G, T, D]."""
  logits = features @ np.asarray(output.output.table).T
  log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
  log_p = log_p[..., np.arange(len(target)), target]
  if output.log_weights is not None:
    log_p = token_mixture(jnp.asarray(log_p), output.log_weights, combine)
  return float(log_p.sum())


def _sentences(output):
  """The features of every sentence of the packed rows, [*G, T, D] each."""
  features = np.asarray(output.features)
  return [
    features[..., row, start : start + target, :]
    for row in (0, 1)
    for start, (_, target) in zip(_STARTS, _LENGTHS, strict=True)
  ]


def test_a_packed_sentence_gets_what_it_gets_alone(fused):
  gradient, sums, packed = fused.packed()
  alone, total = fused.alone(), 0.0
  inside = _sentences(packed)
  for index, (_, target) in enumerate(_pairs()):
    by_itself = np.asarray(alone.features)[..., index, : len(target), :]
    np.testing.assert_allclose(inside[index], by_itself, rtol=1e-4, atol=1e-5)
    expected = _log_probability(alone, by_itself, target, fused.combine)
    got = _log_probability(packed, inside[index], target, fused.combine)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    total -= expected
  np.testing.assert_allclose(sums.negative_log_likelihood, total, rtol=1e-5)
  assert sums.tokens == 2 * (3 + 5 + 1)
  for leaf in jax.tree.leaves(gradient):
    assert np.isfinite(leaf).all()
  _no_sentence_sees_another(inside)


def _no_sentence_sees_another(sentences):
  count = len(_LENGTHS)
  moved = [
    np.abs(first - second).max()
    for first, second in zip(sentences[:count], sentences[count:], strict=True)
  ]
  assert moved.pop(_MIDDLE) > 1e-4
  # Rounding depends on what else is in the batch; seen: 1.2e-7.
  assert max(moved) < 1e-6
