"""Differences in loss between two models, with their errors over lines."""

import numpy as np
import pytest
from saved_runs import SavedRun

import fusion_jax
from benchmarks.comparison.losses import (
  Losses,
  compare,
  difference,
  paired,
  read_losses,
  rendered,
  save_losses,
  score,
)
from benchmarks.comparison.plan import Run
from fusion_jax.errors import InputError


def _losses(nats, subwords):
  return Losses(np.array(nats, np.float32), np.array(subwords, np.int32))


_PLAIN = _losses([2.0, 3.0, 5.0], [1, 1, 2])
# Differences 1, -1 and 4, of 4 subwords: 1 nat each. That leaves 0, -2 and 2,
# with an error of sqrt(3 / 2 * 8) / 4.
_SYSTEM = _losses([3.0, 2.0, 9.0], [1, 1, 2])


def test_a_known_difference():
  found = difference(_SYSTEM, _PLAIN)
  assert found.nats == pytest.approx(1.0)
  assert found.error == pytest.approx(np.sqrt(12) / 4)
  # Twice the normal tail above 2 / sqrt(3), from a table.
  assert found.p == pytest.approx(0.2482, abs=1e-4)


def test_a_model_and_itself():
  found = difference(_PLAIN, _PLAIN)
  assert (found.nats, found.error, found.p) == (0, 0, 1)


def test_the_error_is_that_of_a_bootstrap_over_lines():
  rng = np.random.default_rng(0)
  subwords = rng.integers(3, 40, 800)
  plain = _losses(1.6 * subwords, subwords)
  apart = rng.normal(0.02, 0.3, 800) * subwords
  system = _losses(plain.nats + apart, subwords)
  drawn = rng.integers(0, 800, (4_000, 800))
  means = apart[drawn].sum(1) / subwords[drawn].sum(1)
  found = difference(system, plain)
  assert found.error == pytest.approx(means.std(), rel=0.05)
  assert found.nats == pytest.approx(means.mean(), abs=0.1 * found.error)


def test_all_lines_that_were_not_trained_on():
  plain = {'training': _PLAIN, 'one': _PLAIN, 'two': _PLAIN}
  found = compare(plain | {'training': _SYSTEM, 'one': _SYSTEM}, plain)
  assert list(found) == ['training', 'one', 'two', 'all']
  assert found['training'].nats == pytest.approx(1.0)
  assert found['all'].nats == pytest.approx(0.5)


def test_each_run_is_compared_with_its_plain_model():
  first, second, scheme = (
    Run('plain', 'pre', 'none', 0),
    Run('plain', 'pre', 'none', 1),
    Run('scratch', 'pre', 'dlcl', 1),
  )
  found = paired(
    {first: {'t': _PLAIN}, second: {'t': _SYSTEM}, scheme: {'t': _SYSTEM}}
  )
  assert list(found) == [second, scheme]
  assert found[second]['t'].nats == pytest.approx(1.0)
  assert found[scheme]['t'].nats == 0
  _, _, *rows = rendered(found).splitlines()
  label, numbers = rows[0].split(' | ', 1)
  assert label == '| `plain/pre/none-1`'
  assert numbers == '+1.000 ± 0.866 | +1.000 ± 0.866 | 0.248 |'


def test_runs_without_their_plain_model_are_left_out():
  scheme = Run('scratch', 'pre', 'dlcl', 1)
  plain, other = Run('plain', 'pre', 'none', 0), Run('plain', 'post', 'none', 1)
  continued = Run('continued', 'pre', 'none', 1)
  scored = {run: {'t': _PLAIN} for run in (scheme, plain, other, continued)}
  with pytest.raises(InputError, match='--keep=plain,continued,scratch'):
    paired(scored)
  beside = scheme._replace(seed=0)
  assert list(paired(scored | {beside: {'t': _SYSTEM}})) == [beside]


def test_the_wide_model_is_no_plain_one():
  plain, wide = Run('plain', 'pre', 'none', 0), Run('plain', 'pre', 'wide', 0)
  found = paired({plain: {'t': _PLAIN}, wide: {'t': _SYSTEM}})
  assert list(found) == [wide]
  assert found[wide]['t'].nats == pytest.approx(1.0)


def test_losses_of_a_run(tmp_path):
  run = SavedRun(tmp_path / 'run')
  run.save({1: None})
  model = fusion_jax.load(run.workdir, step='last')
  pairs = ['the cat', 'a dog in the house'], ['cats and dogs', 'the mat']
  found = score(model, pairs)
  for line, own in enumerate(model.score(*pairs)):
    assert found.subwords[line] == len(own.tokens)
    assert found.nats[line] == pytest.approx(-sum(own.tokens))


def test_losses_are_saved_and_read(tmp_path):
  path = tmp_path / 'scratch/pre/dlcl-0.losses.npz'
  texts = {'training': _PLAIN, 'test_2016_flickr': _SYSTEM}
  save_losses(path, texts)
  found = read_losses(path)
  assert list(found) == list(texts)
  for name, own in texts.items():
    np.testing.assert_array_equal(found[name].nats, own.nats, strict=True)
    np.testing.assert_array_equal(
      found[name].subwords, own.subwords, strict=True
    )
  for wrong in (b'', b'PK', path.read_bytes()[:-40]):
    path.write_bytes(wrong)
    with pytest.raises(InputError, match=r'losses.npz: not the losses'):
      read_losses(path)
