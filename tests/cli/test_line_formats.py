"""Lines of input and output, as text and as JSON."""

import gzip
import json

import pytest
from copying import make_tokenizer

from fusion_jax.cli.line_formats import (
  Line,
  open_json,
  open_text,
  score_json,
  score_text,
  translation_json,
  translation_text,
)
from fusion_jax.decoding.pairs import PairIds
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
    ('[' * 100_000, 'json, line 2: nested deeper than 64 levels'),
    ('{"source": "\\ud800"}', 'json, line 2: source: half of a surrogate pa'),
    ('{"source": "a", "id": NaN}', 'json, line 2: id: must be finite, got na'),
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
