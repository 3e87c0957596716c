"""Maps, entropies and diversities of routing over a text."""

import math

import numpy as np
import pytest
from fused_runs import (
  all_at_once,
  fused_run,
  make_run,
  rows_of,
  shown,
)
from pictures import assert_not_blank

from fusion_jax import figures
from fusion_jax.analysis.couplings import VIEW, coupling_maps, draw
from fusion_jax.analysis.view import look_at
from fusion_jax.config.fusion import RoutingOptions, SideConfig

# Capsules of width 2 and 4.
DYNAMIC = SideConfig(
  fusion='dynamic_routing',
  routing=RoutingOptions(capsules=8, route_axis='input', iterations=2),
)
EM = SideConfig(fusion='em_routing', routing=RoutingOptions(capsules=4))


@pytest.fixture(scope='module')
def analysed(tmp_path_factory):
  run = make_run(encoder=DYNAMIC, decoder=EM)
  return fused_run(run, tmp_path_factory.mktemp('routing'))


@pytest.fixture(scope='module')
def looked(analysed):
  finding = look_at(VIEW, analysed, analysed.workdir / 'analysis')
  return finding


def _entropy(couplings, axis):
  terms = -couplings * np.log(np.maximum(couplings, 1e-30))
  return terms.sum(axis).mean()


def _diversity(couplings):
  """The mean over tokens and pairs of capsules of 1 - cosine."""
  units = couplings / np.linalg.norm(couplings, axis=1, keepdims=True)
  cosines = np.einsum('PLi,PLj->Pij', units, units)
  pairs = np.triu_indices(couplings.shape[2], 1)
  return 1 - cosines[:, *pairs].mean()


@pytest.mark.extended
def test_means_are_over_the_tokens_of_the_text(analysed, looked):
  _, sources, _, targets = all_at_once(analysed)
  views = shown(analysed)
  for side, lengths, axis in (('encoder', sources, 2), ('decoder', targets, 3)):
    own = looked.numbers[side]
    # [tokens, I, L, N]
    rows = rows_of(views[side]['read_out']['couplings'], lengths)
    assert own['positions'] == len(rows) == lengths.sum()
    np.testing.assert_allclose(own['couplings'], rows.mean(0), atol=1e-6)
    entropies = [_entropy(rows[:, i], axis - 1) for i in range(rows.shape[1])]
    np.testing.assert_allclose(own['entropy'], entropies, atol=1e-5)
    diversities = [_diversity(rows[:, i]) for i in range(rows.shape[1])]
    np.testing.assert_allclose(own['diversity'], diversities, atol=1e-5)
  assert looked.numbers['encoder']['diversity'][1] > 0.01


def test_iterations_begin_uniform_and_decide(looked):
  encoder, decoder = looked.numbers['encoder'], looked.numbers['decoder']
  assert (encoder['sum_over'], decoder['sum_over']) == ('input', 'output')
  assert np.shape(encoder['couplings']) == (2, 2, 8)
  assert np.shape(decoder['couplings']) == (3, 2, 4)
  np.testing.assert_allclose(np.sum(encoder['couplings'], 1), 1, atol=1e-5)
  np.testing.assert_allclose(np.sum(decoder['couplings'], 2), 1, atol=1e-5)
  for own, uniform in ((encoder, 2), (decoder, 4)):
    assert own['uniform_entropy'] == pytest.approx(math.log(uniform))
    assert own['entropy'][0] == pytest.approx(math.log(uniform), abs=1e-5)
    assert max(own['entropy'][1:]) < math.log(uniform) - 1e-3
    assert own['diversity'][0] == pytest.approx(0, abs=1e-6)


def test_votes_of_zero_leave_all_iterations_uniform(tmp_path):
  zero = dict.fromkeys(
    (
      'votes/out/kernel',
      'votes/out/bias',
      'read_out/beta_a',
      'read_out/beta_u',
    ),
    0.0,
  )
  dynamic = SideConfig(fusion='dynamic_routing')
  run = make_run(zero, encoder=dynamic, decoder=EM)
  numbers = coupling_maps(fused_run(run, tmp_path))
  # 16 capsules where none are asked for: the width.
  for side, capsules in (('encoder', 16), ('decoder', 4)):
    np.testing.assert_allclose(
      numbers[side]['entropy'], [math.log(capsules)] * 3, rtol=1e-5
    )
    np.testing.assert_allclose(
      numbers[side]['couplings'], 1 / capsules, rtol=1e-5
    )


def test_one_iteration_of_one_capsule_is_drawn(looked, tmp_path):
  numbers = {
    'decoder': {
      'couplings': [[[1.0], [1.0]]],
      'entropy': [0.0],
      'diversity': [0.0],
      'uniform_entropy': 0.0,
    },
    'paper': looked.numbers['paper'],
  }
  png, _ = figures.save(draw(numbers), tmp_path / 'one')
  assert_not_blank(png)


def test_the_paper_stands_beside(analysed, looked):
  # Dou et al. (2019), section 4.3.4; log 512 is 6.24.
  paper = looked.numbers['paper']
  assert paper['entropy'][0] == round(paper['uniform_entropy'], 2) == 6.24
  assert 'of at most 1.39' in looked.summary  # log 4
  assert_not_blank(analysed.workdir / 'analysis/couplings.png')
