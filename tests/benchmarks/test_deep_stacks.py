"""Deep stacks: their configs, what is read of a run, and the verdicts."""

import math

import numpy as np
import pytest

from benchmarks.deep_stacks import (
  deep_config,
  exchanged,
  layers_of,
  log_unigram,
  nll,
  read,
  report,
  schemes,
  verdict,
)
from fusion_jax.data.batching import Batch
from fusion_jax.errors import InputError
from fusion_jax.fusion.gtrans import group_count


@pytest.mark.parametrize('text', ['60', '60-12', '0+6', '6+', '', '6+6+6'])
def test_other_depths_are_refused(text):
  with pytest.raises(InputError, match=r'ENCODER\+DECODER'):
    layers_of(text)


# Norms: Yang et al. (2022), section III-D, and Dou et al. (2018); groups of 6
# in 60 layers: Yang et al., section IV-a, and 3 and 2: section III-B.
@pytest.mark.parametrize('scheme', schemes(6))
def test_every_scheme_has_the_norm_of_its_paper(scheme):
  norms = {'rezero': 'rezero', 'dlcl': 'pre', 'pre': 'pre'}
  assert deep_config('6+6', scheme).model.norm == norms.get(scheme, 'post')


@pytest.mark.parametrize(
  ('stacks', 'encoder', 'decoder'), [('18+6', 6, 3), ('60+12', 10, 2)]
)
def test_gtrans_has_the_groups_of_its_paper(stacks, encoder, decoder):
  model = deep_config(stacks, 'gtrans').model
  groups = [group_count(model, side) for side in ('encoder', 'decoder')]
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


def test_the_table_has_runs_and_the_unigram():
  run = read([_line(10, 9.0)], [{'perplexity': 8.0}], steps=10)
  run |= {'other_source': 3.0}
  unigram = {'train': 5.4, 'valid': 5.5}
  rows = report({'unigram': unigram, 'rounds': {'6+6/post': run}}).splitlines()
  assert '| unigram | 5.400 | 5.500 |' in rows[2]
  # log 9 and log 8; 3 - log 8.
  assert rows[3].startswith('| 6+6/post | 2.197 | 2.079 | 0.921 | 0.1 |')
  assert rows[3].endswith('| 0 | trains |')
