"""A plan is carried out once, whatever interrupts it; what stays of a run."""

import json
import subprocess

import pytest
from small_comparison import (
  DENSE,
  LINEAR,
  NUMBERS,
  PLAIN,
  RECIPE,
  planned,
  recipe,
)

from benchmarks.comparison.plan import Contestants, Folders
from benchmarks.comparison.runs import (
  Results,
  Runner,
  carry_out,
  chosen_rate,
  find_texts,
)
from fusion_jax.errors import CheckFailed, InputError

CONTINUED = ('continued',)


class FakeMeasure:
  """Records its calls; what `endings` has for a run ends it.

  An exception is raised once; the next call does the run.
  """

  def __init__(self, losses=None, endings=None):
    self.losses, self.endings = losses or {}, endings or {}
    self.calls, self.cleaned = [], []

  def __call__(self, run, rate):
    self.calls.append((run.name, rate))
    if run.name in self.endings:
      raise self.endings.pop(run.name)
    loss = self.losses.get(run.name, 2.0)
    numbers = NUMBERS | {'fusion_rate': rate, 'validation_nll': loss}
    return numbers, {'test': [run.name]}

  def clean(self, run):
    self.cleaned.append(run.name)


def carried_out(folder, measure, entries=(PLAIN, DENSE), **options):
  """Carries out a plan by a program that has just been started."""
  own = recipe(folder)
  runs = planned(own, entries, CONTINUED)
  results = Results(folder / 'results', own.digests())
  return carry_out(list(runs.values()), results, measure, **options)


def test_a_finished_run_is_not_repeated(tmp_path):
  measure = FakeMeasure()
  assert carried_out(tmp_path, measure, limit=2) == []
  assert carried_out(tmp_path, measure) == []
  assert measure.calls == [
    ('plain/pre/none-0', None),
    ('continued/pre/none-0', None),
    ('continued/pre/dense-0', None),
  ]
  # What an interruption may have left of finished runs is deleted.
  assert measure.cleaned[-3:] == [name for name, _ in measure.calls]


def test_an_interrupted_run_is_done_again_and_the_others_are_not(tmp_path):
  measure = FakeMeasure(endings={'continued/pre/none-0': KeyboardInterrupt()})
  with pytest.raises(KeyboardInterrupt):
    carried_out(tmp_path, measure)
  assert carried_out(tmp_path, measure) == []
  assert [name for name, _ in measure.calls] == [
    'plain/pre/none-0',
    'continued/pre/none-0',
    'continued/pre/none-0',
    'continued/pre/dense-0',
  ]


def test_translations_without_numbers_are_no_finished_run(
  tmp_path, monkeypatch
):
  measure = FakeMeasure()

  def interrupted(path, numbers):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr('benchmarks.common.write_results', interrupted)
    with pytest.raises(KeyboardInterrupt):
      carried_out(tmp_path, measure)
  carried_out(tmp_path, measure, limit=1)
  assert [name for name, _ in measure.calls] == ['plain/pre/none-0'] * 2


def test_a_failed_run_does_not_stop_the_others(tmp_path, capsys):
  failure = subprocess.CalledProcessError(2, 'train.py')
  measure = FakeMeasure(endings={'continued/pre/none-0': failure})
  assert carried_out(tmp_path, measure) == ['continued/pre/none-0']
  assert measure.calls[-1] == ('continued/pre/dense-0', None)
  assert 'continued/pre/none-0: failed' in capsys.readouterr().err
  assert carried_out(tmp_path, measure) == []


def test_without_its_plain_model_a_run_fails_and_is_not_measured(tmp_path):
  measure = FakeMeasure(endings={'plain/pre/none-0': CheckFailed('stopped')})
  assert carried_out(tmp_path, measure) == [
    'plain/pre/none-0',
    'continued/pre/none-0',
    'continued/pre/dense-0',
  ]
  assert len(measure.calls) == 1


def test_a_run_that_is_stopped_at_the_deadline_is_resumed(tmp_path):
  never = FakeMeasure()
  carried_out(tmp_path, never, deadline=1e-9)
  assert never.calls == []
  timeout = subprocess.TimeoutExpired('train.py', 1.0)
  measure = FakeMeasure(endings={'continued/pre/none-0': timeout})
  assert carried_out(tmp_path, measure) == []
  assert len(measure.calls) == 2
  assert carried_out(tmp_path, measure) == []
  assert [name for name, _ in measure.calls[2:]] == [
    'continued/pre/none-0',
    'continued/pre/dense-0',
  ]


@pytest.mark.parametrize(
  ('losses', 'rate'),
  [((2.0, 1.9), 1.0), ((1.9, 2.0), 0.3), ((2.0, 2.0), 0.3), ((None, 9.0), 1.0)],
)
def test_the_rate_has_the_lowest_validation_loss(tmp_path, losses, rate):
  names = 'tuning/pre/linear@0.3-0', 'tuning/pre/linear@1-0'
  measure = FakeMeasure(dict(zip(names, losses, strict=True)))
  carried_out(tmp_path, measure, (PLAIN, LINEAR))
  assert measure.calls[2:] == [
    (names[0], 0.3),
    (names[1], 1.0),
    ('continued/pre/linear-0', rate),
  ]


def test_a_trial_that_fails_is_not_chosen(tmp_path):
  name = 'tuning/pre/linear@0.3-0'
  measure = FakeMeasure(endings={name: CheckFailed('stopped')})
  assert carried_out(tmp_path, measure, (PLAIN, LINEAR)) == [name]
  assert measure.calls[-1] == ('continued/pre/linear-0', 1.0)


def test_without_any_trial_there_is_no_rate(tmp_path):
  own = recipe(tmp_path)
  run = planned(own, (PLAIN, LINEAR))['continued/pre/linear-0']
  with pytest.raises(CheckFailed, match='tuning'):
    chosen_rate(run, Results(tmp_path / 'results', own.digests()))


def test_results_of_another_recipe_are_refused(tmp_path):
  carried_out(tmp_path, FakeMeasure(), limit=1)
  with pytest.raises(InputError, match=r'none-0\.json: of recipe') as error:
    Results(tmp_path / 'results', {'pre': 'another'})
  assert '--recipe' in str(error.value)


def test_results_of_a_norm_that_is_not_asked_for_stay(tmp_path):
  carried_out(tmp_path, FakeMeasure(), limit=1)
  only_post = RECIPE.replace("norms = ['pre', 'post']", "norms = ['post']")
  results = Results(tmp_path / 'results', recipe(tmp_path, only_post).digests())
  assert [found['norm'] for found in results] == ['pre']


def test_a_file_that_is_no_result_is_named(tmp_path):
  (tmp_path / 'wrong.json').write_text('[]')
  with pytest.raises(InputError, match=r'wrong\.json: not a result'):
    Results(tmp_path, {'pre': 'any'})


def test_results_are_read_as_they_were_written(tmp_path):
  own = recipe(tmp_path)
  carried_out(tmp_path, FakeMeasure(), (PLAIN, LINEAR), limit=3)
  results = Results(tmp_path / 'results', own.digests())
  run = planned(own)['tuning/pre/linear@0.3-0']
  assert results[run]['scheme'] == 'linear'
  assert results[run]['fusion_rate'] == 0.3
  assert results.translations(run, 'test') == (run.name,)
  written = tmp_path / 'results' / 'tuning' / 'pre' / 'linear@0.3-0.json'
  assert json.loads(written.read_text())['recipe'] == own.digest('pre')


@pytest.mark.parametrize('kept', [{'plain'}, {'plain', 'continued'}])
def test_checkpoints_stay_of_the_phases_that_are_kept(tmp_path, kept):
  names = 'plain/pre/none-0', 'continued/pre/dense-0', 'scratch/pre/dense-0'
  own = recipe(tmp_path)
  folders = Folders.of(tmp_path, tmp_path, own)
  runner = Runner(
    own,
    Contestants(own.phases['plain']),
    folders,
    tests={},
    deadline=None,
    kept=kept,
  )
  runs = planned(own, (PLAIN, DENSE))
  for name in names:
    checkpoints = folders.run(runs[name]) / 'checkpoints'
    checkpoints.mkdir(parents=True)
    runner.clean(runs[name])
    assert checkpoints.exists() == (runs[name].phase in kept)


def test_texts_are_found_by_pattern(tmp_path):
  data = recipe(tmp_path).phases['plain'].data
  root = tmp_path / 'data'
  (root / 'news').mkdir(parents=True)
  for stem in ('test_b', 'test_a', 'news/test'):
    (root / f'{stem}.en').write_text(f'{stem}\n')
    (root / f'{stem}.de').write_text(f'{stem} auf Deutsch\n')
  patterns = 'test_b.{lang}', 'test_*.{lang}', 'news/test.{lang}'
  texts = find_texts(patterns, data, root)
  assert set(texts) == {'test_b', 'test_a', 'news_test'}
  assert texts['news_test'].references == ('news/test auf Deutsch',)
  assert texts['test_a'].source.read_text() == 'test_a\n'
  (root / 'test_b.de').unlink()
  with pytest.raises(InputError, match=r'test_b\.de'):
    find_texts(patterns, data, root)
  with pytest.raises(InputError, match=r'none\.\{lang\}: no such file'):
    find_texts(['none.{lang}'], data, root)
