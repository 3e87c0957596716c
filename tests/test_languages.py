"""What language codes say of words."""

import logging

import pytest

from fusion_jax.languages import words_of


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
