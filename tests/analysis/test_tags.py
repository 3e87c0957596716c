"""Word classes on subwords: by hand, and what is refused."""

import re

import numpy as np
import pytest

from fusion_jax.analysis import TextChoice
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.tags import (
  Word,
  read_words,
  tagged_text,
  tags_of_characters,
)
from fusion_jax.config import ExperimentConfig, TokenizerConfig
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.errors import InputError
from fusion_jax.runs.loading import TrainedModel, make_model

_LINES = ['Das Haus ist schön.', '', 'Im Häuschen brennt Licht!']
# Im is a word of two tokens, and 2.1 an empty node.
_TAGGED = """# sent_id = 1
1\tDas\t_\tDET\t_\t_\t_\t_\t_\t_
2\tHaus\t_\tNOUN\t_\t_\t_\t_\t_\t_
3\tist\t_\tAUX\t_\t_\t_\t_\t_\t_
4\tschön\t_\tADJ\t_\t_\t_\t_\t_\tSpaceAfter=No
5\t.\t_\tPUNCT\t_\t_\t_\t_\t_\t_

1-2\tIm\t_\t_\t_\t_\t_\t_\t_\t_
1\tIn\t_\tADP\t_\t_\t_\t_\t_\t_
2\tdem\t_\tDET\t_\t_\t_\t_\t_\t_
2.1\t_\t_\tX\t_\t_\t_\t_\t_\t_
3\tHäuschen\t_\tNOUN\t_\t_\t_\t_\t_\t_
4\tbrennt\t_\tVERB\t_\t_\t_\t_\t_\t_
5\tLicht\t_\tNOUN\t_\t_\t_\t_\t_\tSpaceAfter=No
6\t!\t_\tPUNCT\t_\t_\t_\t_\t_\t_
"""


@pytest.fixture(scope='module')
def tokenizer():
  config = TokenizerConfig(
    algorithm='bpe', vocabulary_size=300, byte_fallback=True
  )
  # Without ö and !, which are cut into bytes.
  lines = ['Das Haus ist hoch.', 'Im Häuschen brennt Licht'] * 3
  return Tokenizer(train(lines, config))


def _run_with_text(tmp_path, tokenizer, tagged):
  for name, text in (
    ('text', '\n'.join(_LINES) + '\n'),
    ('tagged.conllu', tagged),
  ):
    (tmp_path / name).write_text(text, encoding='utf-8')
  text = str(tmp_path / 'text')
  config = ExperimentConfig()
  model = make_model(config, tokenizer, tokenizer)
  run = TrainedModel(config, model, {}, 1, tokenizer, tokenizer)
  choice = TextChoice(text, text, 0, str(tmp_path / 'tagged.conllu'), 'target')
  return RunWithText(tmp_path, run, choice)


def test_a_file_gives_words_with_classes(tmp_path):
  path = tmp_path / 'tagged.conllu'
  path.write_text(_TAGGED, encoding='utf-8')
  first, second = read_words(path)
  assert [word.tag for word in first] == ['DET', 'NOUN', 'AUX', 'ADJ', 'PUNCT']
  assert second[:2] == [Word('Im', 'ADP', 8), Word('Häuschen', 'NOUN', 12)]
  assert [word.form for word in second[2:]] == ['brennt', 'Licht', '!']


def test_characters_have_the_class_of_their_word():
  words = [Word('a', 'X', 1), Word('10 000', 'NUM', 2), Word('.', 'P', 3)]
  tags = tags_of_characters('a 10 000.', words, 'here')
  assert tags == ['X', *['NUM'] * 7, 'P']


def test_every_subword_has_the_class_of_its_word(tmp_path, tokenizer):
  found = tagged_text(_run_with_text(tmp_path, tokenizer, _TAGGED))
  assert set(found.of_line) == {1, 3}
  for number, words in ((1, 'Das Haus ist schön .'), (3, None)):
    pieces = tokenizer.pieces(tokenizer.encode(_LINES[number - 1]))
    tags = [found.names[place] for place in found.of_line[number]]
    assert len(tags) == len(pieces)
    if words is None:
      # Every word begins with a space: the classes change there alone.
      starts = [p.startswith('▁') for p in pieces]
      assert tags[0] == 'ADP'
      assert [t for t, s in zip(tags, starts, strict=True) if s] == [
        'ADP',
        'NOUN',
        'VERB',
        'NOUN',
      ]
      assert tags[-1] == 'PUNCT'
    else:
      # ö has two bytes, each a subword.
      at = pieces.index('<0xC3>')
      assert pieces[at + 1] == '<0xB6>'
      assert tags[at : at + 2] == ['ADJ', 'ADJ']
      assert tags[-1] == 'PUNCT'


def test_language_tags_have_no_class(tmp_path, tokenizer):
  tagged = tokenizer.tagged(['<0x01>'])
  found = tagged_text(_run_with_text(tmp_path, tagged, _TAGGED))
  plain = tagged_text(_run_with_text(tmp_path, tokenizer, _TAGGED))
  for number in (1, 3):
    np.testing.assert_array_equal(
      found.of_line[number], [-1, *plain.of_line[number]]
    )


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (('Haus\t', 'Hans\t'), "line 3: 'Hans' is not what the text has there"),
    (('5\t.\t', '5\t.!\t'), "line 6: '.!' is not what the text has there"),
    (('6\t!', '# 6\t!'), "the text continues with '!'"),
    (('2\tHaus\t_\t', '2\tHaus '), 'line 3: must have the ten'),
    (('3\tist', 'a-b\tist'), 'line 4: must have the ten'),
    (('1-2\tIm', '# 1-2\tIm'), "line 9: 'In' is not what the text has"),
  ],
)
def test_what_does_not_fit_is_told_with_line_and_token(
  tmp_path, tokenizer, change, message
):
  assert _TAGGED.count(change[0]) == 1
  analysed = _run_with_text(tmp_path, tokenizer, _TAGGED.replace(*change))
  with pytest.raises(InputError, match=re.escape(message)) as caught:
    tagged_text(analysed)
  assert 'tagged.conllu' in str(caught.value)
  assert '\n' not in str(caught.value)


def test_too_few_sentences_and_no_file(tmp_path, tokenizer):
  few = _TAGGED.split('\n\n')[0]
  with pytest.raises(InputError, match='1 sentences, but line 3'):
    tagged_text(_run_with_text(tmp_path, tokenizer, few))
  analysed = _run_with_text(tmp_path, tokenizer, few)
  (tmp_path / 'tagged.conllu').unlink()
  with pytest.raises(InputError, match='No such file'):
    tagged_text(analysed)
