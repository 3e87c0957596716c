"""Which runs there are, in which order, what they need, and their configs."""

from pathlib import Path

import pytest
from small_comparison import DENSE, LINEAR, PLAIN, SHARED, planned, recipe

from benchmarks.common import changes
from benchmarks.comparison import plan
from benchmarks.comparison.plan import (
  Contestants,
  Folders,
  Run,
  count,
  experiment,
)
from benchmarks.comparison.recipe import RECIPE, read
from benchmarks.schemes import ONLY_FROM_SCRATCH, norms_of, schemes
from fusion_jax.config.flags import load_config, override

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
    'scratch/pre/value_residual_shared-0',
    'scratch/post/value_residual_shared-0',
  ]


def made(run, of, rate=None):
  folders = Folders.of(Path('data'), Path('work'), of)
  return experiment(run, of, Contestants(of.phases['plain']), folders, rate)


@pytest.mark.extended
@pytest.mark.parametrize(
  ('name', 'norm'),
  [
    (name, norm)
    for name, scheme in schemes(6).items()
    for norm in norms_of(scheme.row)
  ],
)
def test_train_py_reads_the_config_of_every_scheme(name, norm):
  frozen = read(RECIPE, 'multi30k')
  run = Run('scratch', norm, name, 3)
  if name not in ONLY_FROM_SCRATCH:
    start = Run('plain', norm, 'none', 3)
    run = Run('continued', norm, name, 3, start=start)
  config = made(run, frozen)
  assert config.training.seed == 3
  assert config.model.norm == ('rezero' if name == 'rezero' else norm)
  if run.start is not None:
    assert config.training.init_from.endswith(f'plain/{norm}/none-3')
  base = load_config(frozen.config)
  flags = changes(config, base).items()
  read_again = override(base, [(field, str(value)) for field, value in flags])
  assert read_again == config


def test_every_fusion_starts_as_the_plain_model():
  frozen = read(RECIPE, 'multi30k')
  start = Run('plain', 'post', 'none', 0)
  for scheme, encoder, decoder in (
    ('linear', 'baseline', 'baseline'),
    ('transparent', 'baseline', 'fresh'),
    ('none', 'fresh', 'fresh'),
  ):
    model = made(Run('continued', 'post', scheme, 0, start=start), frozen).model
    assert (model.encoder.start, model.decoder.start) == (encoder, decoder)
  scratch = made(Run('scratch', 'post', 'linear', 0), frozen)
  assert scratch.training.init_from == ''
  assert scratch.model.encoder.start == 'fresh'


def test_runs_of_other_recipes_have_other_folders(tmp_path):
  own, other = recipe(tmp_path), recipe(tmp_path, corpus='other')
  run = planned(own, (PLAIN, DENSE))['plain/pre/none-0']
  folders = [Folders.of(tmp_path, tmp_path, one) for one in (own, other)]
  assert folders[0].run(run) != folders[1].run(run)


def test_the_wide_model_is_as_large_as_the_heaviest_scheme(
  tmp_path, monkeypatch
):
  names = 'none', 'linear', 'em_routing'
  few = {name: schemes(6)[name] for name in names}
  monkeypatch.setattr(plan, 'schemes', lambda layers: few)
  own = recipe(tmp_path)
  sizes = {
    name: count(made(Run('plain', 'pre', name, 0), own))
    for name in (*names, 'wide')
  }
  # 3+3 layers, each with 2 * 16 weights and a bias for a filter unit; the
  # filter is a multiple of 8.
  step = 8 * 6 * (2 * 16 + 1)
  assert (sizes['wide'] - sizes['none']) % step == 0
  heaviest = max(sizes[name] for name in names)
  assert heaviest > sizes['none']
  assert 0 <= sizes['wide'] - heaviest < step


@pytest.mark.extended
def test_only_what_a_fusion_adds_is_tuned(tmp_path):
  own = Contestants(recipe(tmp_path).phases['plain'])
  tuned = {
    name: own.entry(name).is_tuned
    for name in ('none', 'dense', 'linear', 'rezero', 'wide')
  }
  assert tuned == {
    'none': False,
    'dense': False,
    'linear': True,
    'rezero': False,
    'wide': False,
  }
  assert own.entry('rezero').has_norm
  assert own.entry('none').is_plain
