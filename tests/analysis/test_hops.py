"""The attention of hops over the layers of a text."""

import json

import numpy as np
import pytest
from fused_runs import (
  SOURCES,
  TARGETS,
  all_at_once,
  fused_run,
  make_run,
  rows_of,
  shown,
)
from pictures import assert_not_blank

from fusion_jax import figures
from fusion_jax.analysis.hops import VIEW, draw, hop_attention
from fusion_jax.analysis.view import look_at
from fusion_jax.config.fusion import MlrfOptions, SideConfig

FEATURES = SideConfig(
  fusion='hops',
  mlrf=MlrfOptions(
    hops=2, scorer_width=6, feature_wise=True, include_embedding=False
  ),
)
LAYERS = SideConfig(fusion='hops', mlrf=MlrfOptions(hops=3, scorer_width=6))


@pytest.fixture(scope='module')
def analysed(tmp_path_factory):
  run = make_run(encoder=FEATURES, decoder=LAYERS)
  return fused_run(run, tmp_path_factory.mktemp('hops'))


@pytest.fixture(scope='module')
def numbers(analysed):
  found = look_at(VIEW, analysed, analysed.workdir / 'analysis').numbers
  return json.loads(json.dumps(found))


def test_means_are_over_the_tokens_of_the_text(analysed, numbers):
  _, sources, _, targets = all_at_once(analysed)
  views = shown(analysed)
  for side, lengths in (('encoder', sources), ('decoder', targets)):
    rows = rows_of(views[side]['read_out']['hop_attention'], lengths)
    assert numbers[side]['positions'] == len(rows)
    np.testing.assert_allclose(numbers[side]['mean'], rows.mean(0).T, rtol=1e-5)


def test_attention_sums_to_1_over_the_named_layers(numbers):
  assert numbers['encoder']['layers'] == ['H[1]', 'H[2]']
  assert numbers['decoder']['layers'] == ['H[0]', 'H[1]', 'H[2]']
  for side, hops in (('encoder', 2), ('decoder', 3)):
    own = numbers[side]
    assert np.shape(own['mean']) == (hops, len(own['layers']))
    np.testing.assert_allclose(np.sum(own['mean'], 1), 1, rtol=1e-5)
    for sentence in own['sentences']:
      attention = np.array(sentence['attention'])
      assert attention.shape == (
        *np.shape(own['mean']),
        len(sentence['pieces']),
      )
      np.testing.assert_allclose(attention.sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize(
  ('side', 'text'), [('encoder', SOURCES), ('decoder', TARGETS)]
)
def test_the_first_five_sentences_are_shown_word_by_word(
  analysed, numbers, side, text
):
  sentences = numbers[side]['sentences']
  assert [sentence['line'] for sentence in sentences] == [1, 2, 3, 4, 5]
  for sentence, line in zip(sentences, text, strict=False):
    *words, end = sentence['pieces']
    assert ''.join(words).replace('▁', ' ').strip() == line
    assert end == '</s>'
    if side == 'encoder':
      assert sentence['read'] == sentence['pieces']
    else:
      assert sentence['read'] == ['<s>', *words]
  # The sentences are those of the whole text's pass.
  seen = shown(analysed)[side]['read_out']['hop_attention']
  for row, sentence in zip(seen, sentences, strict=False):
    expected = row[: len(sentence['pieces'])].transpose(2, 1, 0)
    np.testing.assert_allclose(sentence['attention'], expected, atol=1e-5)


def test_a_scorer_of_zeros_reads_all_layers_alike(tmp_path):
  run = make_run({'read_out/scorer_out/kernel': 0.0}, decoder=LAYERS)
  numbers = hop_attention(fused_run(run, tmp_path, lines=2))
  assert set(numbers) == {'decoder'}
  np.testing.assert_allclose(numbers['decoder']['mean'], 1 / 3, rtol=1e-5)
  assert len(numbers['decoder']['sentences']) == 2


def test_the_figure(analysed, numbers):
  assert_not_blank(analysed.workdir / 'analysis/hops.png')
  svg = (analysed.workdir / 'analysis/hops.svg').read_text(encoding='utf-8')
  assert 'decoder, line 1, hop 3' in svg


def test_pieces_that_look_like_formulas_are_drawn(numbers, tmp_path):
  changed = json.loads(json.dumps(numbers))
  first = changed['decoder']['sentences'][0]
  first['pieces'] = ['$\\no$'] * len(first['pieces'])
  png, svg = figures.save(draw(changed), tmp_path / 'dollars')
  assert_not_blank(png)
  assert '$\\no$' in svg.read_text()
