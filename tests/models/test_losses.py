"""Cross-entropy by chunks of the output layer, against the plain formula."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params
from loss_cases import make_case, plain_loss

from fusion_jax.models.losses import _chunk_count, cross_entropy
from fusion_jax.models.transformer import OutputLayer
from fusion_jax.testing import assert_close


def test_by_hand():
  # Logits (0, ln 3): p = (1/4, 3/4).
  output = OutputLayer(jnp.array([[0.0], [math.log(3)]]), None)
  features = jnp.ones((1, 3, 1))
  targets, lengths = jnp.array([[1, 0, 0]]), jnp.array([2])
  sums = cross_entropy(features, output, targets, lengths, 0.2)
  likelihood = -math.log(3 / 4) - math.log(1 / 4)
  uniform = -(math.log(3 / 4) + math.log(1 / 4)) / 2
  assert float(sums.negative_log_likelihood) == pytest.approx(likelihood)
  assert float(sums.loss) == pytest.approx(0.8 * likelihood + 0.4 * uniform)
  assert int(sums.correct) == 1
  assert int(sums.tokens) == 2


def test_no_tokens_are_no_loss_and_no_gradient():
  features, output, targets, _ = make_case(0)
  lengths = jnp.zeros(4, jnp.int32)

  def loss(features):
    return cross_entropy(features, output, targets, lengths, 0.1, 6).loss

  value, gradient = jax.value_and_grad(loss)(features)
  assert float(value) == 0
  assert not np.asarray(gradient).any()


@settings(max_examples=15)
@given(
  st.integers(0, 1000),
  st.sampled_from([0.0, 0.1, 0.5]),
  st.booleans(),
  st.sampled_from([0, 1, 6, 12, 1000]),
)
def test_value_and_gradients_equal_the_plain_formula(
  seed, smoothing, bias, chunk
):
  features, output, targets, lengths = make_case(seed, bias=bias)

  def ours(features, output):
    sums = cross_entropy(features, output, targets, lengths, smoothing, chunk)
    return 0.37 * sums.loss

  def plain(features, output):
    return 0.37 * plain_loss(features, output, targets, lengths, smoothing)

  value, gradient = jax.value_and_grad(ours, (0, 1))(features, output)
  expected, gradient_expected = jax.value_and_grad(plain, (0, 1))(
    features, output
  )
  assert_close(value, expected)
  assert_close(ours(features, output), value)
  assert_close(gradient, gradient_expected)


def test_large_logits_stay_finite():
  output = OutputLayer(jnp.array([[1e4], [-1e4], [0.0]]), None)
  features, targets = jnp.ones((1, 2, 1)), jnp.array([[0, 1]])

  def loss(features):
    return cross_entropy(features, output, targets, jnp.array([2]), 0.1).loss

  value, gradient = jax.value_and_grad(loss)(features)
  # Position 0: 0.1 * mean(0, 2e4, 1e4); position 1: 0.9 * 2e4 + the same.
  assert float(value) == pytest.approx(2 * 0.1 * 1e4 + 0.9 * 2e4)
  assert np.isfinite(gradient).all()


def test_bfloat16_features_keep_a_float32_loss():
  features, output, targets, lengths = make_case(2)
  half = features.astype(jnp.bfloat16)

  def loss(features):
    return cross_entropy(features, output, targets, lengths, 0.1, 6).loss

  value, gradient = jax.value_and_grad(loss)(half)
  assert value.dtype == jnp.float32
  assert gradient.dtype == jnp.bfloat16
  assert float(value) == pytest.approx(float(loss(features)), rel=0.02)


def test_ties_count_as_correct():
  output = OutputLayer(jnp.zeros((3, 1)), None)
  sums = cross_entropy(
    jnp.ones((1, 2, 1)), output, jnp.array([[0, 2]]), jnp.array([2])
  )
  assert int(sums.correct) == 2


@pytest.mark.parametrize(
  ('rows', 'row_tokens', 'chunk', 'count'),
  # The most chunks of at least `chunk` tokens that divide the rows.
  [
    (64, 32, 256, 8),
    (64, 32, 0, 1),
    (12, 10, 30, 4),
    (7, 10, 30, 1),
    (8, 4, 1000, 1),
  ],
)
def test_chunk_count(rows, row_tokens, chunk, count):
  assert _chunk_count(rows, row_tokens, chunk) == count


def test_the_logits_of_a_batch_are_never_held():
  features, output, targets, lengths = make_case(
    0, rows=64, length=16, width=8, vocabulary=4096
  )

  def loss(chunk):
    def of(features, output):
      return cross_entropy(features, output, targets, lengths, 0.1, chunk).loss

    compiled = jax.jit(jax.grad(of, (0, 1))).lower(features, output).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  # 64 * 16 * 4096 float32 logits are 16 MiB, a chunk of 64 tokens 1 MiB.
  assert loss(0) > 16 * 2**20
  assert loss(64) < 4 * 2**20


@pytest.mark.parametrize('smoothing', [0.0, 0.1])
def test_logits_are_summed_over_the_vocabulary_twice(smoothing):
  """Their largest and the sum of their exponentials; each is a pass over them.

  The mean that smoothing needs is a product with the mean of the table.
  """
  features, output, targets, lengths = make_case(0, bias=False)

  def loss(features):
    return cross_entropy(features, output, targets, lengths, smoothing).loss

  def passes(jaxpr):
    """Reductions of arrays with a row for each token."""
    for equation in jaxpr.eqns:
      for inside in jaxprs_in_params(equation.params):
        yield from passes(inside)
      shapes = [x.aval.shape for x in equation.invars]
      if equation.primitive.name.startswith('reduce') and logits in shapes:
        yield equation.primitive.name

  logits = targets.size, len(output.table)
  found = list(passes(jax.make_jaxpr(jax.grad(loss))(features).jaxpr))
  assert sorted(found) == ['reduce_max', 'reduce_sum']
