"""The configs that runs are trained with."""

import json
from pathlib import Path

import pytest
from small_comparison import DENSE, PLAIN, planned, recipe

from benchmarks.comparison import contestants
from benchmarks.comparison.contestants import Contestants, count
from benchmarks.comparison.experiment import Folders, experiment, overrides
from benchmarks.comparison.measure import seconds_an_update
from benchmarks.comparison.plan import Run
from benchmarks.comparison.recipe import RECIPE, read
from benchmarks.comparison.texts import find_tests
from benchmarks.schemes import ONLY_FROM_SCRATCH, norms_of, schemes
from benchmarks.serving import ROOT
from fusion_jax.config.flags import load_config, override
from fusion_jax.errors import InputError


def made(run, own, rate=None):
  folders = Folders.of(Path('data'), Path('work'), own)
  return experiment(run, own, Contestants(own.phases['plain']), folders, rate)


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
  config = made(run, frozen).config
  assert config.training.seed == 3
  assert config.model.norm == ('rezero' if name == 'rezero' else norm)
  if run.start is not None:
    assert config.training.init_from.endswith(f'plain/{norm}/none-3')
  flags = overrides(config, frozen).items()
  read_again = override(
    load_config(f'{ROOT}/{frozen.config}'),
    [(field, str(value)) for field, value in flags],
  )
  assert read_again == config


def test_every_fusion_starts_as_the_plain_model():
  frozen = read(RECIPE, 'multi30k')
  start = Run('plain', 'post', 'none', 0)
  sides = 'encoder', 'decoder'
  for scheme, expected in (
    ('linear', dict.fromkeys(sides, 'baseline')),
    ('feature_fusion', dict.fromkeys(sides, 'baseline')),
    ('transparent', {'encoder': 'baseline'}),
    ('none', {}),
  ):
    found = made(Run('continued', 'post', scheme, 0, start=start), frozen)
    assert found.start == expected
    for side, way in found.start.items():
      assert found.config.model.side(side).start == way


def test_from_scratch_nothing_starts_elsewhere():
  found = made(Run('scratch', 'post', 'linear', 0), read(RECIPE, 'multi30k'))
  assert found.start == {}
  assert found.config.training.init_from == ''
  assert found.config.model.encoder.start == 'fresh'


def test_runs_of_other_recipes_have_other_folders(tmp_path):
  own, other = recipe(tmp_path), recipe(tmp_path, corpus='other')
  run = planned(own, (PLAIN, DENSE))['plain/pre/none-0']
  folders = [Folders.of(tmp_path, tmp_path, each) for each in (own, other)]
  assert folders[0].run(run) != folders[1].run(run)


def test_the_wide_model_is_as_large_as_the_heaviest_scheme(
  tmp_path, monkeypatch
):
  names = 'none', 'linear', 'em_routing'
  few = {name: schemes(6)[name] for name in names}
  monkeypatch.setattr(contestants, 'schemes', lambda layers: few)
  own = recipe(tmp_path)
  sizes = {
    name: count(made(Run('plain', 'pre', name, 0), own).config)
    for name in (*names, 'wide')
  }
  # 3+3 layers, each with 2 * 16 weights and a bias for a filter unit; the
  # filter is a multiple of 8.
  step = 8 * 6 * (2 * 16 + 1)
  assert (sizes['wide'] - sizes['none']) % step == 0
  heaviest = max(sizes[name] for name in names)
  assert heaviest > sizes['none']
  assert 0 <= sizes['wide'] - heaviest < step


def test_a_fusion_has_more_operations(tmp_path):
  own = Contestants(recipe(tmp_path).phases['plain'])
  assert own.gflop('linear') > own.gflop('none')


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
  scratch = {name for name in own.names if own.entry(name).only_scratch}
  assert scratch == ONLY_FROM_SCRATCH
  assert own.entry('none').is_plain


def test_the_seconds_of_an_update_are_without_compilation(tmp_path):
  lines = [
    {'kind': 'train', 'step': step, 'seconds': seconds}
    for step, seconds in ((10, 60.0), (20, 62.0), (30, 65.0), (40, 67.0))
  ]
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  (tmp_path / 'metrics.jsonl').write_text(text + '{"kind": "tr')
  # Laps of 0.2, 0.3 and 0.2 s.
  assert seconds_an_update(tmp_path) == pytest.approx(0.2)
  (tmp_path / 'metrics.jsonl').write_text(text.splitlines()[0] + '\n')
  assert seconds_an_update(tmp_path) == pytest.approx(6.0)


def test_tests_are_found_by_pattern_and_unpacked(tmp_path):
  data = recipe(tmp_path).phases['plain'].data
  root = tmp_path / 'data'
  (root / 'news').mkdir(parents=True)
  for stem in ('test_b', 'test_a', 'news/test'):
    (root / f'{stem}.en').write_text(f'{stem}\n')
    (root / f'{stem}.de').write_text(f'{stem} auf Deutsch\n')
  patterns = 'test_b.{lang}', 'test_*.{lang}', 'news/test.{lang}'
  tests = find_tests(patterns, data, root, tmp_path / 'tests')
  assert list(tests) == ['test_b', 'test_a', 'news_test']
  assert tests['news_test'].references == ('news/test auf Deutsch',)
  assert tests['test_a'].source.read_text() == 'test_a\n'
  (root / 'test_b.de').unlink()
  with pytest.raises(InputError, match=r'test_b\.de: no such file'):
    find_tests(patterns, data, root, tmp_path / 'tests')
  with pytest.raises(InputError, match=r'none\.en: no such file'):
    find_tests(['none.{lang}'], data, root, tmp_path / 'tests')
  (root / 'test.en.gz').write_bytes(b'no archive')
  (root / 'test.de.gz').write_bytes(b'no archive')
  with pytest.raises(InputError, match=r'test\.en\.gz: not readable'):
    find_tests(['test.{lang}.gz'], data, root, tmp_path / 'tests')
