"""The fusions of Yang et al. (2022) against their references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_cases import (
  BATCH,
  KEEP,
  LENGTH,
  LENGTHS,
  WIDTH,
  check_read_out,
  compare,
  model_config,
  single,
)
from references import yang2022
from references.parts import log_softmax

from fusion_jax.fusion.gtrans import DecoderGroups, EncoderGroups
from fusion_jax.fusion.mixture import keep_groups, mixture_log_probabilities
from fusion_jax.models.losses import cross_entropy
from fusion_jax.models.transformer import OutputLayer


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
  config = model_config('encoder', depth, 'gtrans', options)
  check_read_out(
    EncoderGroups(config, 'encoder'),
    depth,
    'encoder',
    lambda p, layers: yang2022.encoder_groups(
      p, layers, config.encoder.options
    ),
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
  config = model_config('decoder', depth, 'gtrans', options)
  check_read_out(
    DecoderGroups(config, 'decoder'),
    depth,
    'decoder',
    lambda p, layers: yang2022.decoder_groups(
      p, layers, config.decoder.options
    ),
  )


def _prediction(groups, words):
  """Features, log psi, table, bias and targets."""
  rng = np.random.default_rng(3)
  features = rng.normal(size=(groups, BATCH, LENGTH, WIDTH))
  log_psi = log_softmax(rng.normal(size=groups))
  table, bias = rng.normal(size=(words, WIDTH)), rng.normal(size=words)
  targets = rng.integers(0, words, (BATCH, LENGTH), np.int32)
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
      features.reshape(len(features), -1, WIDTH),
      log_psi,
      lambda x: x @ table.T + bias,
      combine,
    )

  result = mixture(*single((features, log_psi, table, bias)))
  features, log_psi = yang2022.prune(features, log_psi, *kept)
  expected = yang2022.mixture(
    log_psi,
    yang2022.group_log_probabilities(features, table, bias),
    combine,
  )
  compare(result.reshape(expected.shape), expected)


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
      jnp.asarray(LENGTHS),
      0.1,
      chunk,
      log_psi,
      combine,
    )
  )
  sums = loss(*single((features, log_psi, table, bias)))
  by_group = yang2022.group_log_probabilities(features, table, bias)
  smoothed = yang2022.group_loss(log_psi, by_group, targets, KEEP, 0.1)
  mixed = yang2022.mixture(log_psi, by_group, combine)
  chosen = np.take_along_axis(mixed, targets[..., None], -1)[..., 0]
  compare(
    (sums.loss, sums.negative_log_likelihood),
    (smoothed, -chosen[KEEP].sum()),
  )
  assert sums.correct == (mixed.argmax(-1) == targets)[KEEP].sum()
  assert sums.tokens == KEEP.sum()
