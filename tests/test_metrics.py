"""Scores worked out by hand, and what language codes say of words."""

import logging
from typing import get_args

import pytest
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers import tokenizer_spm

from fusion_jax.config.decoding import BleuTokenizer
from fusion_jax.errors import InputError
from fusion_jax.metrics import (
  corpus_scores,
  metrics_for,
  signature_of,
  words_of,
)

HYPOTHESES = ['the cat sat on the mat', 'a dog barks']
REFERENCES = ['the cat sat on a mat', 'a dog barks loudly.']


def test_bleu_of_two_sentences():
  # 1-grams: 5 of 6 (the second `the` is clipped) and 3 of 3; 2-grams: 3 of 5
  # and 2 of 2; 3-grams: 2 of 4 and 1 of 1; 4-grams: 1 of 3 and 0 of 0. The
  # references have 6 and (13a parts the full stop) 5 tokens, so the brevity
  # penalty is exp(1 - 11/9).
  # 100 exp(-2/9) (8/9 * 5/7 * 3/5 * 1/3)^(1/4) = 47.79995
  scores = corpus_scores(HYPOTHESES, REFERENCES, 'en')
  assert scores.bleu == pytest.approx(47.79995, abs=1e-5)
  assert scores.bleu_signature.startswith('nrefs:1|case:mixed|eff:no|tok:13a')
  assert scores.report.splitlines()[0].startswith(
    f'BLEU|{scores.bleu_signature} = 47.80 88.9/71.4/60.0/33.3 (BP = 0.801'
  )


def test_chrf_of_one_word():
  # `ab` for `ac`: 1 of 2 characters, 0 of 1 pairs, longer n-grams in neither:
  # precision and recall are (1/2 + 0) / 2 = 1/4, and so is their F2.
  scores = corpus_scores(['ab'], ['ac'], 'en')
  assert scores.chrf == pytest.approx(25.0)
  assert scores.chrf_signature.startswith('nrefs:1|case:mixed|eff:yes|nc:6')


@pytest.mark.parametrize(
  ('language', 'tokenizer'),
  [('zh_CN', 'zh'), ('ja', 'ja-mecab'), (words_of('de', 'char'), 'char')],
)
def test_tokenizer_of_the_language(language, tokenizer):
  # Four words or characters at least, so that 4-grams exist.
  line = '私は黒い猫がとても好きです。'
  scores = corpus_scores([line], [line], language)
  assert f'|tok:{tokenizer}' in scores.bleu_signature
  assert scores.bleu == pytest.approx(100)
  assert scores.chrf == pytest.approx(100)


def test_a_tokenizer_that_cannot_be_had_is_one_line(monkeypatch, tmp_path):
  def fail(*_):
    raise OSError('no network')

  monkeypatch.setattr(tokenizer_spm, 'SACREBLEU_DIR', str(tmp_path))
  monkeypatch.setattr(tokenizer_spm, 'download_file', fail)
  with pytest.raises(InputError, match=r'^the tokenizer flores200 .* no netw'):
    corpus_scores(['a'], ['a'], words_of('de', 'flores200'))


def test_the_config_knows_the_tokenizers_of_sacrebleu():
  assert set(get_args(BleuTokenizer)) == {'', *BLEU.TOKENIZERS}


def test_lines_must_correspond():
  with pytest.raises(InputError, match=r'^1 lines to score but 2 reference'):
    corpus_scores(['a'], REFERENCES, 'en')
  with pytest.raises(InputError, match=r'^there are no lines to score$'):
    corpus_scores([], [], 'en')


def test_metrics_of_a_language():
  metrics = metrics_for('ja_JP')
  assert list(metrics) == ['BLEU', 'chrF2', 'TER']
  plain = metrics_for('de')
  for metric, references, part in (
    (metrics['BLEU'], 1, '|tok:ja-mecab'),
    (metrics['TER'], 1, '|norm:yes|punct:yes|asian:yes'),
    (plain['TER'], 1, '|norm:no|punct:yes|asian:no'),
    (plain['BLEU'], 3, 'nrefs:3|case:mixed'),
  ):
    assert part in signature_of(metric, references).format()
  # Two of three characters are right; as words there would be none.
  score = metrics['TER'].corpus_score(['黒犬だ'], [['黒猫だ']])
  assert score.num_edits == 1


@pytest.mark.parametrize(
  ('tokenizer', 'between', 'codes'),
  [
    (
      'zh',
      '',
      'zh zho chi cmn zh_CN zh-TW zh-Hant-HK zho_Hans zho_Hant cmn_Hans yue '
      'yue_Hant wuu lzh zh_classical',
    ),
    ('ja-mecab', '', 'ja jpn jpn_Jpan ja_JP ja-JP jpn_Hira'),
    ('ko-mecab', ' ', 'ko kor kor_Hang ko_KR'),
    ('char', '', 'th tha tha_Thai lo lao lao_Laoo km khm_Khmr my mya_Mymr bur'),
    ('13a', ' ', 'en eng_Latn de deu ger pt_BR sr_latn zho_Latn vie_Latn hi'),
  ],
)
def test_every_code_of_a_language_says_the_same(
  tokenizer, between, codes, caplog
):
  caplog.set_level(logging.INFO)
  for code in codes.split():
    assert words_of(code)[:2] == (tokenizer, between), code
  assert words_of('') == words_of('en')
  assert not caplog.records


def test_an_unknown_code_is_logged_once(caplog):
  caplog.set_level(logging.INFO)
  assert words_of('xq_unknown') == words_of('xq_unknown') == words_of('en')
  (message,) = caplog.messages
  assert message.startswith("language 'xq_unknown' is unknown: ")
  assert 'BLEU is 13a' in message


def test_a_tokenizer_replaces_that_of_the_language():
  assert words_of('th', 'flores200')[:2] == ('flores200', '')
  assert words_of(words_of('ja'), 'spm')[:2] == ('spm', '')
