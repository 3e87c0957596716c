"""Which runs there are, in which order, and what they need."""

import pytest
from small_comparison import (
  DENSE,
  ENTRIES,
  LINEAR,
  PLAIN,
  SHARED,
  planned,
  recipe,
)

SEED_0_PRE = [
  'plain/pre/none-0',
  'continued/pre/none-0',
  'tuning/pre/linear@0.3-0',
  'tuning/pre/linear@1-0',
  'continued/pre/linear-0',
  'continued/pre/dense-0',
  'plain/pre/wide-0',
  'continued/pre/wide-0',
]


def test_the_order_is_continued_by_norm_then_scratch_then_seeds(tmp_path):
  names = list(planned(recipe(tmp_path), norms=('pre', 'post'), seeds=(0, 1)))
  seed_0_post = [name.replace('/pre/', '/post/') for name in SEED_0_PRE]
  scratch = [
    'scratch/pre/linear-0',
    'scratch/pre/dense-0',
    'scratch/pre/rezero-0',
    'scratch/post/linear-0',
    'scratch/post/dense-0',
  ]
  seed_0 = [*SEED_0_PRE, *seed_0_post, *scratch]
  seed_1 = [f'{name[:-1]}1' for name in seed_0 if not name.startswith('tuning')]
  assert names == seed_0 + seed_1


def test_a_scheme_is_left_out_where_a_norm_does_not_suit_it(tmp_path):
  entries = PLAIN, DENSE._replace(norms=('pre',))
  names = planned(recipe(tmp_path), entries, norms=('pre', 'post'))
  assert [name for name in names if 'dense' in name] == [
    'continued/pre/dense-0',
    'scratch/pre/dense-0',
  ]


def test_every_run_comes_after_what_it_needs(tmp_path):
  runs = planned(recipe(tmp_path), norms=('pre', 'post'), seeds=(0, 1))
  seen = set()
  for run in runs.values():
    assert set(run.needs) <= seen
    seen.add(run)


def test_a_run_starts_from_the_plain_model_of_its_norm_and_seed(tmp_path):
  runs = planned(recipe(tmp_path), norms=('post',), seeds=(1,))
  linear = runs['continued/post/linear-1']
  assert linear.start.name == 'plain/post/none-1'
  # The rate is chosen by the seed of the tuning.
  assert [trial.name for trial in linear.trials] == [
    'tuning/post/linear@0.3-0',
    'tuning/post/linear@1-0',
  ]
  assert all(trial.start.name == 'plain/post/none-0' for trial in linear.trials)
  assert runs['continued/post/wide-1'].start.name == 'plain/post/wide-1'
  assert runs['continued/post/dense-1'].trials == ()
  assert runs['scratch/post/linear-1'].needs == ()


def test_what_is_needed_is_planned_whatever_is_chosen(tmp_path):
  runs = planned(
    recipe(tmp_path), (PLAIN, LINEAR), ('continued',), ('pre',), (1,)
  )
  assert list(runs) == [
    'plain/pre/none-0',
    'tuning/pre/linear@0.3-0',
    'tuning/pre/linear@1-0',
    'plain/pre/none-1',
    'continued/pre/none-1',
    'continued/pre/linear-1',
  ]


@pytest.mark.parametrize('norm', ['pre', 'post'])
def test_a_scheme_that_is_a_norm_is_trained_from_scratch_once(tmp_path, norm):
  names = planned(recipe(tmp_path), norms=(norm,))
  found = [name for name in names if 'rezero' in name]
  assert found == (['scratch/pre/rezero-0'] if norm == 'pre' else [])


def test_a_scheme_without_an_exact_start_is_trained_from_scratch(tmp_path):
  entries = PLAIN, SHARED
  names = planned(recipe(tmp_path), entries, norms=('pre', 'post'))
  assert [name for name in names if 'shared' in name] == [
    'scratch/pre/shared-0',
    'scratch/post/shared-0',
  ]


def test_one_phase_of_one_scheme(tmp_path):
  runs = planned(recipe(tmp_path), (PLAIN, DENSE), ('scratch',))
  assert list(runs) == ['scratch/pre/dense-0']
  assert not planned(recipe(tmp_path), ENTRIES, ())
