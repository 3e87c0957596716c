"""The loss of groups, the mixture of GTRANS, against plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from loss_cases import make_case, plain_loss

from fusion_jax.models.losses import cross_entropy
from fusion_jax.models.transformer import OutputLayer
from fusion_jax.parallel.mesh import ROW_AXES, data_mesh
from fusion_jax.testing import assert_close


def _groups_case(seed, groups=3, **sizes):
  """log psi, and the case with the features of several groups."""
  features, *rest = make_case(seed, **sizes)
  keys = jax.random.split(jax.random.key(seed + 1))
  features = jax.random.normal(keys[0], (groups, *features.shape))
  log_weights = jax.nn.log_softmax(jax.random.normal(keys[1], (groups,)))
  return log_weights, (features, *rest)


def _plain_groups(log_weights, features, output, targets, lengths, smoothing):
  """Eq. 7 of Yang et al. (2022) on all logits of all groups at once."""
  losses = [
    plain_loss(x, output, targets, lengths, smoothing) for x in features
  ]
  return (jnp.exp(log_weights) * jnp.stack(losses)).sum()


def _mixture_scores(log_weights, features, output, combine):
  """log of the mixture, [B, T, V] in float64."""
  logits = np.asarray(features, np.float64) @ np.asarray(output.table).T
  if output.bias is not None:
    logits = logits + np.asarray(output.bias)
  p = np.exp(logits - logits.max(-1, keepdims=True))
  p = p / p.sum(-1, keepdims=True)
  psi = np.exp(np.asarray(log_weights, np.float64))[:, None, None, None]
  if combine == 'arithmetic':
    return np.log((psi * p).sum(0))
  return (psi * np.log(p)).sum(0)


@settings(max_examples=8)
@given(
  st.integers(0, 1000),
  st.sampled_from([1, 2, 3]),
  st.sampled_from([0.0, 0.1]),
  st.booleans(),
  st.sampled_from([0, 1, 12, 1000]),
  st.sampled_from(['arithmetic', 'geometric']),
)
def test_groups_equal_the_plain_formula(
  seed, groups, smoothing, bias, chunk, combine
):
  log_weights, case = _groups_case(seed, groups, bias=bias)
  features, output, targets, lengths = case

  def ours(log_weights, features, output):
    sums = cross_entropy(
      features, output, targets, lengths, smoothing, chunk, log_weights, combine
    )
    return 0.37 * sums.loss, sums

  def plain(log_weights, features, output):
    return 0.37 * _plain_groups(
      log_weights, features, output, targets, lengths, smoothing
    )

  arguments = (log_weights, features, output)
  (value, sums), gradient = jax.jit(
    jax.value_and_grad(ours, (0, 1, 2), has_aux=True)
  )(*arguments)
  expected, gradient_expected = jax.jit(jax.value_and_grad(plain, (0, 1, 2)))(
    *arguments
  )
  assert_close(value, expected)
  assert_close(gradient, gradient_expected)
  # Without a gradient the same; the others are those of the mixture.
  assert_close(jax.jit(ours)(*arguments)[1], sums)
  scores = _mixture_scores(log_weights, features, output, combine)
  keep = np.arange(targets.shape[1]) < np.asarray(lengths)[:, None]
  chosen = np.take_along_axis(scores, np.asarray(targets)[..., None], -1)[
    ..., 0
  ]
  assert_close(sums.negative_log_likelihood, -chosen[keep].sum())
  assert int(sums.correct) == (chosen == scores.max(-1))[keep].sum()
  assert int(sums.tokens) == keep.sum()


@pytest.mark.parametrize('combine', ['arithmetic', 'geometric'])
@pytest.mark.parametrize('chunk', [0, 6])
def test_psi_of_every_token(combine, chunk):
  _, (features, output, targets, lengths) = _groups_case(8, 2)
  drawn = jax.random.normal(jax.random.key(1), (2, *targets.shape))
  log_weights = jax.nn.log_softmax(drawn, axis=0)

  def ours(log_weights, features, output):
    sums = cross_entropy(
      features, output, targets, lengths, 0.1, chunk, log_weights, combine
    )
    return sums.loss, sums

  def plain(log_weights, features, output):
    # A token in a row of its own has one psi.
    alone = targets.reshape(-1, 1)
    keep = jnp.arange(targets.shape[1]) < lengths[:, None]
    losses = jax.vmap(
      lambda x, own, token, kept: _plain_groups(
        own, x[:, None, None], output, token[None], kept[None] * 1, 0.1
      )
    )(
      jnp.moveaxis(features.reshape(2, -1, features.shape[-1]), 0, 1),
      log_weights.reshape(2, -1).T,
      alone,
      keep.reshape(-1),
    )
    return losses.sum()

  arguments = (log_weights, features, output)
  (value, sums), gradient = jax.value_and_grad(ours, (0, 1, 2), has_aux=True)(
    *arguments
  )
  expected, gradient_expected = jax.value_and_grad(plain, (0, 1, 2))(*arguments)
  assert_close(value, expected)
  assert_close(gradient, gradient_expected)
  scores = np.stack(
    [
      _mixture_scores(
        log_weights[:, row, place],
        features[:, row : row + 1, place : place + 1],
        output,
        combine,
      )[0, 0]
      for row, place in np.ndindex(targets.shape)
    ]
  )
  keep = (np.arange(targets.shape[1]) < np.asarray(lengths)[:, None]).ravel()
  chosen = np.take_along_axis(scores, np.asarray(targets).reshape(-1, 1), 1)
  assert_close(sums.negative_log_likelihood, -chosen[keep].sum())
  assert int(sums.correct) == (chosen[:, 0] == scores.max(-1))[keep].sum()


@pytest.mark.parametrize('combine', ['arithmetic', 'geometric'])
def test_large_logits_of_groups_stay_finite(combine):
  output = OutputLayer(jnp.array([[1e4], [-1e4], [0.0]]), None)
  features = jnp.array([1.0, -1.0]).reshape(2, 1, 1, 1) * jnp.ones((1, 2, 1))
  targets, lengths = jnp.array([[0, 1]]), jnp.array([2])

  def loss(features, weights):
    sums = cross_entropy(
      features,
      output,
      targets,
      lengths,
      0.1,
      log_weights=jax.nn.log_softmax(weights),
      combine=combine,
    )
    return sums.loss, sums

  for weights in (jnp.zeros(2), jnp.array([200.0, -200.0])):
    result = jax.value_and_grad(loss, (0, 1), has_aux=True)(features, weights)
    for leaf in jax.tree.leaves(result):
      assert np.isfinite(leaf).all()


def test_no_tokens_of_groups_have_no_gradient():
  log_weights, (features, output, targets, _) = _groups_case(0)

  def loss(log_weights, features):
    lengths = jnp.zeros(4, jnp.int32)
    return cross_entropy(
      features, output, targets, lengths, 0.1, 6, log_weights
    ).loss

  for leaf in jax.tree.leaves(
    jax.value_and_grad(loss, (0, 1))(log_weights, features)
  ):
    assert not np.asarray(leaf).any()


def test_bfloat16_groups_keep_a_float32_loss():
  log_weights, (features, *rest) = _groups_case(2)

  def loss(features, log_weights):
    return cross_entropy(features, *rest, 0.1, 6, log_weights).loss

  half = features.astype(jnp.bfloat16)
  value, gradient = jax.value_and_grad(loss, (0, 1))(half, log_weights)
  exact, gradient_exact = jax.value_and_grad(loss, (0, 1))(
    half.astype(jnp.float32), log_weights
  )
  assert value.dtype == jnp.float32
  assert [g.dtype for g in gradient] == [jnp.bfloat16, jnp.float32]
  assert float(value) == pytest.approx(float(exact), rel=0.02)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a.astype(jnp.float32), b, rtol=0.02, atol=0.02
    ),
    gradient,
    gradient_exact,
  )


def test_groups_on_many_devices():
  log_weights, case = _groups_case(7, rows=16)
  features, output, targets, lengths = case

  def loss(features, log_weights, output, targets, lengths):
    sums = cross_entropy(
      features, output, targets, lengths, 0.1, 48, log_weights
    )
    return sums.loss, sums

  step = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))
  expected = step(features, log_weights, output, targets, lengths)
  mesh = data_mesh(jax.devices()[:4])
  rows = NamedSharding(mesh, PartitionSpec(ROW_AXES))
  of_groups = NamedSharding(mesh, PartitionSpec(None, ROW_AXES))
  same = NamedSharding(mesh, PartitionSpec())
  with jax.set_mesh(mesh):
    ours = step(
      jax.device_put(features, of_groups),
      *jax.device_put((log_weights, output), same),
      *jax.device_put((targets, lengths), rows),
    )
  assert ours[1][0].sharding.is_equivalent_to(of_groups, 4)
  assert_close(ours, expected)


def test_groups_share_the_memory_of_one():
  log_weights, (features, output, targets, lengths) = _groups_case(
    0, 6, rows=64, length=16, width=8, vocabulary=4096
  )

  def loss(features, output, log_weights):
    return cross_entropy(
      features, output, targets, lengths, 0.1, 64, log_weights
    ).loss

  compiled = (
    jax.jit(jax.grad(loss, (0, 1, 2)))
    .lower(features, output, log_weights)
    .compile()
  )
  # A chunk of 64 tokens has 1 MiB of logits a group, the features of all
  # groups 0.2 MiB: logits, their gradient and the mixture.
  assert compiled.memory_analysis().temp_size_in_bytes < 5 * 2**20
