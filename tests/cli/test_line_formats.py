"""Lines of input and output: text, JSON, and hard alignments."""

import gzip
import io
import json

import numpy as np
import pytest
import sentencepiece
from copying import LINES, make_tokenizer

from fusion_jax.cli.line_formats import (
  Line,
  link_line,
  open_json,
  open_text,
  piece_links,
  score_json,
  score_text,
  translation_json,
  translation_text,
  word_links,
  word_numbers,
)
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.batches import PairIds
from fusion_jax.decoding.score import Scored
from fusion_jax.decoding.translate import Translation
from fusion_jax.errors import InputError


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'in').write_text('a\n\nc\n')
  (tmp_path / 'other').write_text('x\ny\n')


def _json_lines(tmp_path, *lines):
  (tmp_path / 'json').write_text('\n'.join(lines) + '\n')
  with open_json('json', ('source',)) as found:
    return list(found)


def test_files_side_by_side():
  with open_text('in') as lines:
    assert list(lines) == [Line('a'), Line(''), Line('c')]
  with open_text('in', prefix='in', target='in') as lines:
    assert list(lines)[2] == Line('c', 'c', 'c')


def test_a_compressed_file_beside_a_plain_one(tmp_path):
  (tmp_path / 'packed.gz').write_bytes(gzip.compress(b'x\ny\nz\n'))
  with open_text('in', target='packed.gz') as lines:
    assert [line.target for line in lines] == ['x', 'y', 'z']


def test_the_shorter_file_is_named():
  with open_text('in', prefix='other') as lines:
    assert next(lines) == Line('a', prefix='x')
    with pytest.raises(InputError, match='other: 2 lines, fewer than in:'):
      list(lines)
  with (
    open_text('other', target='in') as lines,
    pytest.raises(InputError, match='other: 2 lines, fewer than in:'),
  ):
    list(lines)


def test_json_lines_hand_on_what_is_not_theirs(tmp_path):
  lines = _json_lines(
    tmp_path, '{"source": "a\\nb", "id": 7}', '{"source": "", "prefix": "p"}'
  )
  assert lines == [Line('a\nb', others={'id': 7}), Line('', prefix='p')]


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('{"source": ', 'json, line 2: not JSON: '),
    ('["source"]', 'json, line 2: must be an object'),
    ('{"text": "a"}', "json, line 2: the object has no 'source'"),
    ('{"source": 3}', "json, line 2: 'source' must be text, got 3"),
    ('', 'json, line 2: not JSON: '),
    ('[' * 100_000, 'json, line 2: nested too deep'),
    ('{"source": "\\ud800"}', "json, line 2: not JSON: 'utf-8' codec can"),
    ('{"source": "a", "id": NaN}', 'json, line 2: not JSON: Out of range'),
  ],
)
def test_a_broken_json_line_is_named(tmp_path, line, message):
  with pytest.raises(InputError, match=message) as caught:
    _json_lines(tmp_path, '{"source": "fine"}', line)
  assert '\n' not in str(caught.value)


def _translations(tokenizer):
  pair = PairIds([4, 3], [5, 6, 3])
  return tokenizer.pieces(pair.target), [
    Translation('good', -0.5, -1.25, (pair,), (-0.25, -0.5, -0.5)),
    Translation('bad', -2.0, -2.0, (), ()),
  ]


def test_translations_as_json():
  tokenizer = make_tokenizer()
  names, translations = _translations(tokenizer)
  line = Line('quelle', others={'id': 7, 'index': 'theirs'})
  found = json.loads(translation_json(3, line, translations, tokenizer))
  assert found['id'] == 7
  assert found['index'] == 3
  assert found['source'] == 'quelle'
  assert found['translations'][0] == {
    'text': 'good',
    'score': -0.5,
    'log_probability': -1.25,
    'tokens': names,
    'token_log_probabilities': [-0.25, -0.5, -0.5],
  }
  assert found['translations'][1]['tokens'] == []


def test_translations_as_text():
  _, translations = _translations(make_tokenizer())
  assert list(translation_text(3, translations, 0, False)) == ['good']
  assert list(translation_text(3, translations, 2, False)) == [
    '3 ||| good ||| -0.500000',
    '3 ||| bad ||| -2.000000',
  ]
  assert next(translation_text(3, translations, 2, True)) == (
    '3 ||| good ||| -0.500000 ||| -0.250000 -0.500000 -0.500000'
  )


def test_scores_as_text_and_json():
  scored = Scored((-1.0, -2.0), 2.0, -0.25)
  text = '-3.000000\t-1.500000\t-1.750000'
  assert score_text(scored, False) == text
  assert score_text(scored, True) == text + '\t-1.000000 -2.000000'
  found = json.loads(score_json(0, Line('a', 'b'), scored))
  assert found == {
    'index': 0,
    'source': 'a',
    'target': 'b',
    'log_probability': -3.0,
    'mean': -1.5,
    'score': -1.75,
    'token_log_probabilities': [-1.0, -2.0],
  }


# Of 'in the house </s>' over 'im Haus </s>', the house in two pieces each.
_WEIGHTS = np.array(
  [
    [0.5, 0.2, 0.2, 0.1],  # in: im
    [0.3, 0.1, 0.2, 0.4],  # the: the end symbol, but im of the pieces
    [0.1, 0.6, 0.2, 0.1],  # hou: Ha
    [0.0, 0.3, 0.3, 0.4],  # se: Ha, the first of the two
    [0.0, 0.0, 0.9, 0.1],  # the end symbol, which has no link
  ]
)
_SOURCE = ['im', ' Ha', 'us']
_TARGET = ['in', ' the', ' hou', 'se']


def test_every_target_piece_is_linked_to_its_largest_weight():
  assert piece_links(_WEIGHTS) == [(0, 0), (0, 1), (1, 2), (1, 3)]


def _first(surfaces, space_last=False):
  ranges = word_numbers(surfaces, space_last)
  assert all(len(own) == 1 for own in ranges)
  return [own[0] for own in ranges]


def test_words_are_linked_where_pieces_are():
  assert (_first(_SOURCE), _first(_TARGET)) == ([0, 1, 1], [0, 1, 2, 2])
  source, target = word_numbers(_SOURCE, False), word_numbers(_TARGET, False)
  links = piece_links(_WEIGHTS)
  assert word_links(links, source, target) == [(0, 0), (0, 1), (1, 2)]
  both = [(2, 3), (0, 3), (1, 2)]
  assert word_links(both, source, target) == [(0, 2), (1, 2)]


def test_a_space_is_of_the_word_that_the_model_gives_it_to():
  assert _first(['', 'a', 'b', ' ', 'c', ' d']) == [0, 0, 0, 1, 1, 2]
  assert _first(['ab', ' ', 'c ', 'd', ' '], True) == [0, 0, 1, 2, 2]
  # The first bytes of a character have no text of their own.
  assert _first(['a ', '', 'é', '', 'ö'], True) == [0, 1, 1, 1, 1]
  assert word_numbers([], False) == []


def test_a_piece_of_several_words_is_a_part_of_all():
  pieces = ['', 'in', ' New York', ' or']
  assert word_numbers(pieces, False)[2:] == [range(1, 3), range(3, 4)]
  assert word_links([(0, 2)], [range(4, 5)], word_numbers(pieces, False)) == [
    (4, 1),
    (4, 2),
  ]


@pytest.mark.parametrize('space_last', [False, True])
@pytest.mark.parametrize('byte_fallback', [False, True])
def test_there_are_as_many_words_as_in_the_text(space_last, byte_fallback):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(LINES * 3),
    model_writer=model,
    model_type='bpe',
    vocab_size=310 if byte_fallback else 50,
    treat_whitespace_as_suffix=space_last,
    byte_fallback=byte_fallback,
    minloglevel=2,
  )
  tokenizer = Tokenizer(model.getvalue())
  assert tokenizer.space_last == space_last
  for line in [*LINES, 'a \u2603 dog', 'the d\u2603g \u00e9\u00e9 sat']:
    pieces = tokenizer.surfaces(tokenizer.encode(line.strip()))
    words = line.split()
    numbers = _first(pieces, space_last)
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(words)))
    for number, word in enumerate(words):
      own = [p for n, p in zip(numbers, pieces, strict=True) if n == number]
      assert ''.join(own).strip().replace('\u2047', '\u2603') in (
        word,
        word.replace('\u00e9\u00e9', '\u2603'),
      )


def test_without_source_pieces_there_are_no_links():
  assert piece_links(np.ones((3, 1))) == []
  assert piece_links(np.ones((1, 3))) == []


def test_the_parts_of_a_line_are_numbered_through():
  links = piece_links(_WEIGHTS)
  parts = [(links, 3, 4), ([], 0, 2), ([(1, 0)], 2, 1)]
  assert link_line(parts) == '0-0 0-1 1-2 1-3 4-6'
  assert link_line([]) == ''
