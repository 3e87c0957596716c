"""Deep stacks: which runs there are, when they are done, what they showed."""

import argparse
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import deep_stacks
from benchmarks.common import write_results
from benchmarks.deep_recipes import SCHEMES, get_config, layers_of
from benchmarks.deep_report import draw, report
from benchmarks.deep_stacks import (
  changes,
  jobs,
  read,
  resumed,
  run_missing,
  seconds_of,
)
from benchmarks.deep_verdict import exchanged, log_unigram, nll, verdict
from benchmarks.programs import measured_fields
from fusion_jax.data.batching import Batch
from fusion_jax.errors import InputError


def _arguments(tmp_path, **flags):
  default = {
    'data': Path('multi30k'),
    'workdir': tmp_path,
    'depths': '18+6,60+12',
    'schemes': 'post,gtrans',
    'minutes': math.inf,
    'steps': None,
    'peak': None,
    'warmup': None,
    'output': tmp_path / 'results.json',
  }
  return argparse.Namespace(**default | flags)


def _results(job, **rounds):
  common = job._replace(stacks='6+6', scheme='post').config
  return {
    'settings': measured_fields(common),
    'unigram': {'train': 5.4, 'valid': 5.5},
    'rounds': rounds,
  }


def _measured(seconds=60.0):
  return {
    'steps': [10, 20],
    'train': [7.0, 4.0],
    'valid': 4.2,
    'other_source': 4.9,
    'gradient_norm': 2.0,
    'first_norms': [0.25, 0.5],
    'last_norms': [0.125, 0.5],
    'skipped': 0,
    'seconds': seconds,
  }


def test_a_depth_is_two_numbers():
  assert layers_of('60+12') == (60, 12)


@pytest.mark.parametrize('text', ['60', '60-12', '0+6', '6+', '', '6+6+6'])
def test_other_depths_are_refused(text):
  with pytest.raises(InputError, match=r'ENCODER\+DECODER'):
    layers_of(text)


def test_an_unknown_scheme_is_refused_with_those_there_are(tmp_path):
  with pytest.raises(InputError, match=r"no scheme 'mlrf'; there are post, "):
    jobs(_arguments(tmp_path, schemes='post,mlrf'))


def test_runs_come_depth_by_depth(tmp_path):
  names = [job.name for job in jobs(_arguments(tmp_path))]
  assert names == ['18+6/post', '18+6/gtrans', '60+12/post', '60+12/gtrans']


def test_without_a_choice_all_schemes_are_run(tmp_path):
  found = jobs(_arguments(tmp_path, depths='6+6', schemes=''))
  assert [job.scheme for job in found] == list(SCHEMES)


def test_flags_of_the_recipe_reach_the_config_and_name_the_runs(tmp_path):
  (job,) = jobs(
    _arguments(tmp_path, depths='6+6', schemes='pre', steps=40, peak=5e-4)
  )
  assert job.config.training.steps == 40
  assert job.config.optimizer.peak == 5e-4
  assert job.workdir == tmp_path / 'runs-steps=40-peak=0.0005' / '6+6-pre'


# Norms: Yang et al. (2022), section III-D, and Dou et al. (2018); groups of 6
# in 60 layers: Yang et al., section IV-a, and 3 and 2: section III-B.
@pytest.mark.parametrize('scheme', SCHEMES)
def test_every_scheme_has_the_norm_of_its_paper(scheme):
  norms = {'rezero': 'rezero', 'dlcl': 'pre', 'pre': 'pre'}
  assert get_config(f'6+6/{scheme}').model.norm == norms.get(scheme, 'post')


@pytest.mark.parametrize(
  ('stacks', 'encoder', 'decoder'), [('18+6', 6, 3), ('60+12', 10, 2)]
)
def test_gtrans_has_the_groups_of_its_paper(stacks, encoder, decoder):
  model = get_config(f'{stacks}/gtrans').model
  groups = [
    len(model.side(side).gtrans.groups(model.layers(side), side))
    for side in ('encoder', 'decoder')
  ]
  assert groups == [encoder, decoder]


@pytest.mark.parametrize(
  ('train', 'valid', 'other', 'expected'),
  [
    ([7.0, 5.0, 4.0], 4.1, 4.6, 'trains'),
    ([7.0, 5.0, 4.0], 4.1, 4.14, 'source not read'),
    ([7.0, 5.0, 5.6], 5.3, 5.4, 'rose again'),
    ([7.0, None, 4.0], 4.1, 4.6, 'trains'),
    ([7.0, 5.5], 5.45, 5.5, 'no better than unigrams'),
    ([7.0, 4.0, None], 4.0, 4.6, 'not finite'),
    ([7.0, 4.0], None, 4.6, 'not finite'),
    ([7.0, 4.0], 4.0, None, 'not finite'),
    ([], None, None, 'not finite'),
  ],
)
def test_the_verdict_on_a_run(train, valid, other, expected):
  run = {'train': train, 'valid': valid, 'other_source': other}
  assert verdict(run, unigram=5.5) == expected


def test_log_unigram_by_hand():
  # (3 + 1) / 7, (1 + 1) / 7, (0 + 1) / 7.
  np.testing.assert_allclose(
    np.exp(log_unigram(np.array([3.0, 1.0, 0.0]))), [4 / 7, 2 / 7, 1 / 7]
  )


def _line(step, perplexity, skipped=0):
  norms = {'encoder_gradient_norm_1': step / 2, 'encoder_gradient_norm_2': 0.25}
  return {
    'step': step,
    'perplexity': perplexity,
    'gradient_norm': 1.0 / step,
    'skipped': skipped,
    **norms,
  }


def test_what_is_read_from_the_metrics():
  lines = [_line(10, math.e**2), _line(20, None, skipped=3)]
  found = read(lines, [{'perplexity': math.e}], steps=20)
  assert found == {
    'steps': [10, 20],
    'train': [pytest.approx(2), None],
    'valid': pytest.approx(1),
    'gradient_norm': 0.1,
    'first_norms': [5.0, 0.25],
    'last_norms': [10.0, 0.25],
    'skipped': 3,
  }


def test_updates_without_a_line_were_skipped():
  assert read([_line(10, 9.0, skipped=1)], [], steps=30)['skipped'] == 21
  assert read([], [], steps=30)['skipped'] == 30


@pytest.mark.parametrize('perplexity', [None, math.inf, math.nan])
def test_nll_of_what_is_not_finite(perplexity):
  assert nll(perplexity) is None


def test_sentences_exchange_their_sources_and_padding_keeps_its_own():
  ids = np.array([[1, 1], [2, 0], [3, 3], [0, 0]], np.int32)
  lengths = np.array([2, 1, 2, 0], np.int32)
  batch = Batch(ids, ids, lengths, lengths)
  found = exchanged(batch)
  np.testing.assert_array_equal(found.source, ids[[1, 2, 0, 3]])
  np.testing.assert_array_equal(found.source_lengths, [1, 2, 2, 0])
  np.testing.assert_array_equal(found.target, ids)


def test_results_of_another_recipe_are_not_replaced(tmp_path):
  arguments = _arguments(tmp_path, fresh=False)
  assert resumed(arguments, {'model.width': 64})['rounds'] == {}
  known = {'settings': {'model.width': 32}, 'rounds': {'6+6/post': {}}}
  write_results(arguments.output, known)
  assert resumed(arguments, {'model.width': 32}) == known
  with pytest.raises(
    InputError, match=r'results\.json: has results of another'
  ):
    resumed(arguments, {'model.width': 64})
  arguments.fresh = True
  assert resumed(arguments, {'model.width': 64})['rounds'] == {}


def test_the_time_of_a_run_follows_its_scheme_and_its_layers(tmp_path):
  job = jobs(_arguments(tmp_path, depths='60+12', schemes='gtrans'))[0]
  rounds = {'6+6/post': {'seconds': 24.0}}
  assert seconds_of(job, {}) is None
  assert seconds_of(job, rounds) == 2 * 72
  rounds['6+6/gtrans'] = {'seconds': 36.0}
  assert seconds_of(job, rounds) == 3 * 72


def test_finished_runs_are_not_repeated(tmp_path, monkeypatch):
  arguments = _arguments(tmp_path, depths='6+6')
  post, gtrans = jobs(arguments)
  results = _results(post)
  results['rounds'][post.name] = {'changes': changes(post, results)}
  results['rounds'][post.name] |= _measured()
  started = []
  monkeypatch.setattr(
    deep_stacks, 'measure', lambda job: started.append(job) or _measured()
  )
  assert run_missing([post, gtrans], results, arguments) == []
  assert started == [gtrans]
  assert '6+6/gtrans' in arguments.output.read_text()
  assert run_missing([post, gtrans], results, arguments) == []
  assert started == [gtrans]


def test_runs_that_do_not_fit_are_left_out(tmp_path, monkeypatch):
  arguments = _arguments(tmp_path, minutes=1.5, schemes='post,pre')
  wanted = jobs(arguments)
  monkeypatch.setattr(deep_stacks, 'measure', lambda job: _measured(60.0))
  # 60 seconds for 24 layers make 180 for 72.
  left = run_missing(wanted, _results(wanted[0]), arguments)
  assert [job.name for job in left] == ['60+12/post', '60+12/pre']


def test_a_changed_recipe_is_run_again(tmp_path):
  job = jobs(_arguments(tmp_path, depths='6+6', schemes='gtrans'))[0]
  results = _results(job)
  known = changes(job, results) | {'model.width': 32}
  results['rounds'][job.name] = {'changes': known}
  assert not deep_stacks.is_done(job, results)


def _two_depths(tmp_path):
  found = jobs(_arguments(tmp_path))
  results = _results(found[0])
  results['rounds'] = {
    job.name: {'changes': changes(job, results)} | _measured() for job in found
  }
  return results


def test_the_table_has_runs_and_the_unigram_by_depth(tmp_path):
  lines = report(_two_depths(tmp_path)).splitlines()
  firsts = [line.split()[0] for line in lines[2:7]]
  expected = ['unigram', '18+6/post', '18+6/gtrans', '60+12/post']
  assert firsts == [*expected, '60+12/gtrans']
  assert '5.500' in lines[2]
  assert lines[3].endswith('trains')


def test_the_figure_has_a_panel_for_each_depth(tmp_path):
  panels = draw(_two_depths(tmp_path)).axes
  assert [panel.get_title() for panel in panels] == [
    '18+6 layers',
    '60+12 layers',
  ]
  assert [len(panel.lines) for panel in panels] == [3, 3]
