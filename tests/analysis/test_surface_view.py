"""Losses of both predictions of SurfaceFusion over a text."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fused_runs import all_at_once, fused_run, make_run, rows_of
from pictures import assert_not_blank

from fusion_jax.analysis.frequency import frequency_bins, subword_counts
from fusion_jax.analysis.surface import VIEW, surface_numbers
from fusion_jax.analysis.view import look_at
from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig, SurfaceOptions


def _decoder(**options):
  return SideConfig('surface_fusion', surface=SurfaceOptions(**options))


@pytest.fixture(scope='module')
def analysed(tmp_path_factory):
  run = make_run(decoder=_decoder(kind='learned'))
  return fused_run(run, tmp_path_factory.mktemp('surface'))


def _expected(analysed):
  """g and the three losses of every target subword, and the subwords."""
  *source, target, lengths = all_at_once(analysed)
  run = analysed.run
  output = run.model.apply(
    {'params': run.parameters}, *map(jnp.asarray, (*source, target))
  )
  table = np.asarray(output.output.table)
  log_p = jax.nn.log_softmax(np.asarray(output.features) @ table.T)
  index = np.broadcast_to(target[None, ..., None], (2, *target.shape, 1))
  log_p = np.take_along_axis(np.asarray(log_p), index, -1)[..., 0]
  psi = np.exp(output.log_weights)
  each = psi[0], *-log_p, -(psi * log_p).sum(0)
  return [rows_of(x, lengths) for x in each], rows_of(target, lengths)


def test_against_all_subwords_of_the_text(analysed):
  found = look_at(VIEW, analysed, analysed.workdir / 'analysis').numbers
  numbers = json.loads(json.dumps(found))
  assert_not_blank(analysed.workdir / 'analysis' / 'surface.png')
  quantities, tokens = _expected(analysed)
  counts = subword_counts(
    (pair.target for pair in analysed.pairs), analysed.run.target_tokenizer
  )
  bins = frequency_bins(counts)[tokens]
  assert numbers['tokens']['all'] == len(tokens)
  assert numbers['tokens']['frequency'] == [
    int((bins == number).sum()) for number in range(10)
  ]
  for name, own in zip(
    ('weight', 'own', 'surface', 'both'), quantities, strict=True
  ):
    np.testing.assert_allclose(numbers[name]['all'], own.mean(), rtol=1e-4)
    for number in range(10):
      value, there = numbers[name]['frequency'][number], bins == number
      if there.any():
        np.testing.assert_allclose(value, own[there].mean(), rtol=1e-4)
      else:
        assert value is None


def test_a_fixed_weight_is_shown(tmp_path):
  run = make_run(decoder=_decoder(weight=0.6))
  numbers = surface_numbers(fused_run(run, tmp_path))
  assert numbers['weight']['all'] == pytest.approx(0.6)
  mixed = 0.6 * numbers['own']['all'] + 0.4 * numbers['surface']['all']
  assert numbers['both']['all'] == pytest.approx(mixed, rel=1e-4)


def test_added_scores_are_no_two_predictions():
  config = ModelConfig(decoder=_decoder())
  assert VIEW.applies(config)
  soft = dataclasses.replace(config, decoder=_decoder(kind='soft'))
  assert not VIEW.applies(soft)
