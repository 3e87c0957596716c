"""Word classes on subwords: by hand, and what is refused."""

import re

import numpy as np
import pytest
from fused_runs import make_run, tokenizer_of

from fusion_jax.analysis import TextChoice
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.tags import (
  Word,
  read_words,
  tagged_text,
  tags_of_characters,
)
from fusion_jax.errors import InputError

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
  # Without ö and !, which are cut into bytes.
  lines = ['Das Haus ist hoch.', 'Im Häuschen brennt Licht'] * 3
  return tokenizer_of(lines, 300, byte_fallback=True)


def _run_with_text(tmp_path, tokenizer, tagged):
  for name, text in (
    ('text', '\n'.join(_LINES) + '\n'),
    ('tagged.conllu', tagged),
  ):
    (tmp_path / name).write_text(text, encoding='utf-8')
  text = str(tmp_path / 'text')
  choice = TextChoice(text, text, 0, str(tmp_path / 'tagged.conllu'), 'target')
  return RunWithText(tmp_path, make_run(tokenizer=tokenizer), choice)


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
  pieces = {
    n: tokenizer.pieces(tokenizer.encode(_LINES[n - 1])) for n in (1, 3)
  }
  tags = {n: [found.names[x] for x in found.of_line[n]] for n in (1, 3)}
  # ö has two bytes, each a subword.
  at = pieces[1].index('<0xC3>')
  assert pieces[1][at + 1] == '<0xB6>'
  assert tags[1][at : at + 2] == ['ADJ', 'ADJ']
  assert tags[1][-1] == tags[3][-1] == 'PUNCT'
  # Every word begins with a space: the classes change there alone.
  pairs = zip(tags[3], pieces[3], strict=True)
  begun = [tag for tag, piece in pairs if piece.startswith('▁')]
  assert begun == ['ADP', 'NOUN', 'VERB', 'NOUN']


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
