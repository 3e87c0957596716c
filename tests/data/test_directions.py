"""Preparing and reading back several directions in one folder."""

import dataclasses
import pickle

import numpy as np
import pytest
from test_prepare import data_in, numbers, write_split

from fusion_jax.config import (
  DataConfig,
  Direction,
  SamplingConfig,
  TokenizerConfig,
)
from fusion_jax.data import prepare
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.errors import InputError

TAG = '<2{lang}>'
DE_EN, EN_DE, EN_FR = ('de', 'en'), ('en', 'de'), ('en', 'fr')


def files(source, target, **fields):
  names = {name: (f'{name}.{{lang}}',) for name in ('train', 'valid', 'test')}
  return Direction(source, target, **(names | fields))


@pytest.fixture(scope='module')
def text(tmp_path_factory):
  """300 pairs of en and de; 30 more lines of en have fr: the same words."""
  folder = tmp_path_factory.mktemp('text')
  write_split(folder, 'train', numbers(300))
  write_split(folder, 'valid', [('', 'null'), *numbers(20, 300)])
  write_split(folder, 'test', numbers(10, 320))
  for name, count in (('few', 30), ('little', 4)):
    (folder / f'{name}.en').write_text('one two\n' * count)
    (folder / f'{name}.fr').write_text('un deux\n' * count)
  return folder


def several(text, **fields):
  few = {'train': ('few.{lang}',), 'valid': ('little.{lang}',), 'test': ()}
  fields = {
    'directions': (files(*EN_DE), files(*EN_FR, **few), files(*DE_EN)),
    'target_tag': TAG,
    'tokenizer': TokenizerConfig(vocabulary_size=50),
  } | fields
  return DataConfig(root=str(text), prepared=str(text / 'prepared'), **fields)


@pytest.fixture(scope='module')
def corpus(text):
  return prepare.prepare(several(text))


def test_a_folder_without_directions_is_named_as_ever(text):
  # Without directions and tags no setting says that there are none.
  write_split(text, 'old', numbers(20, 300))
  corpus = prepare.prepare(data_in(text, valid=('old.{lang}',)))
  assert corpus.directory.name == 'en-de-unigram45-17bd14dd98b7e772'
  assert corpus.source_tokenizer.digest.startswith('e5f84de15b1b5061')
  assert 'directions' not in corpus.report['splits']['train']
  assert corpus.split('train').directions == {'en-de': 300}


def test_tags_are_pieces_that_text_is_not_cut_into(corpus):
  tokenizer = corpus.source_tokenizer
  assert tokenizer.vocabulary.size == 50
  ids = [tokenizer.id_of(tag) for tag in ('<2de>', '<2fr>', '<2en>')]
  assert ids == [4, 5, 6]
  assert not set(ids) & set(tokenizer.encode('<2de> one'))
  assert tokenizer.decode([4, *tokenizer.encode('one'), 5]) == 'one'


def test_every_direction_has_its_own_part_with_its_tags(corpus):
  split = corpus.split('train')
  assert split.directions == {'en-de': 300, 'en-fr': 30, 'de-en': 300}
  tags = {'en-de': '<2de>', 'en-fr': '<2fr>', 'de-en': '<2en>'}
  pairs = {
    'en-de': numbers(300),
    'en-fr': [('one two', 'un deux')] * 30,
    'de-en': [pair[::-1] for pair in numbers(300)],
  }
  first = 0
  for direction, count in split.directions.items():
    own = corpus.split('train', direction)
    assert len(own) == count
    np.testing.assert_array_equal(
      own.lengths, split.lengths[first : first + count]
    )
    for index in (0, 7, count - 1):
      example = own[index]
      np.testing.assert_array_equal(example.source, split[first + index].source)
      tag, *source = example.source.tolist()
      assert tag == corpus.source_tokenizer.id_of(tags[direction])
      decoded = tuple(
        corpus.source_tokenizer.decode(ids) for ids in (source, example.target)
      )
      assert decoded == pairs[direction][index]
      # No tag on the target side.
      assert example.target.min() == 3
      assert own.lengths[index].tolist() == list(map(len, example))
    first += count
  with pytest.raises(IndexError):
    corpus.split('train', 'en-fr')[30]


def test_held_out_text_of_each_direction(corpus):
  # The first pair has an empty source: it is text, and no example.
  counts = {'en-de': 20, 'en-fr': 4, 'de-en': 20}
  assert corpus.split('valid').directions == counts
  own = corpus.split('valid', 'de-en')
  sources, targets = own.texts()
  expected = [('', 'null'), *numbers(20, 300)]
  assert list(zip(targets, sources, strict=True)) == expected
  tokenizer = corpus.source_tokenizer
  assert tokenizer.decode(own[0].target) == numbers(1, 300)[0][0]
  assert tokenizer.decode(own[19].target) == numbers(1, 319)[0][0]
  assert corpus.split('test').directions == {'en-de': 10, 'de-en': 10}
  assert corpus.report['splits']['valid']['pairs'] == 21 + 4 + 21
  assert corpus.report['splits']['valid']['directions']['en-fr']['kept'] == 4


def test_sampled_text_keeps_its_tags(text):
  sampling = SamplingConfig(source_alpha=0.05)
  data = several(text, sampling=sampling, source_tag='<{lang}>')
  corpus = prepare.prepare(data)
  split = corpus.split('train')
  tokenizer = corpus.source_tokenizer
  assert split.sampled
  for index, tags in ((0, ['<en>', '<2de>']), (629, ['<de>', '<2en>'])):
    sources = [split.sample(index, seed).source for seed in range(20)]
    sources.append(split[index].source)
    assert len({ids.tobytes() for ids in sources}) > 2
    for ids in sources:
      assert len(ids) <= split.lengths[index, 0]
      assert tokenizer.pieces(ids[:2].tolist()) == tags
    assert len({tokenizer.decode(ids) for ids in sources}) == 1


@pytest.mark.parametrize(
  ('fields', 'expected'),
  [
    # 300, 30, 300 pairs in proportion.
    ({}, [300, 30, 300]),
    # 1, 0.1^(1/2), 1: of 630 pairs 272, 86, 272, those of fr repeatedly.
    ({'mixing_temperature': 2.0}, [272, 86, 272]),
    # Of 126 lines, 63 pairs, a tenth of all.
    ({'lines': 126}, [30, 3, 30]),
  ],
)
def test_the_tokenizer_sees_the_shares(text, monkeypatch, fields, expected):
  seen = []
  model = prepare.prepare(several(text)).source_tokenizer.model

  def record(lines, _, tags):
    seen.extend(lines)
    assert tags == ('<2de>', '<2fr>', '<2en>')
    return model

  monkeypatch.setattr(prepare, 'train_tokenizer', record)
  lines = fields.pop('lines', 0)
  tokenizer = TokenizerConfig(vocabulary_size=49, training_lines=lines)
  prepare.prepare(several(text, tokenizer=tokenizer, **fields))
  assert len(seen) == 2 * sum(expected)
  assert seen.count('un deux') == expected[1]
  # Text of en-de and its reverse is the same.
  assert sum(line.split()[0] in 'null eins zwei' for line in seen) > 0
  first = seen[: 2 * expected[0]]
  assert [len(set(first[side::2])) for side in (0, 1)] == [expected[0]] * 2


def test_what_decides_the_tokenizer_decides_the_folder(text, corpus):
  data = several(text)
  assert prepare.prepare(data).directory == corpus.directory
  heavier = (dataclasses.replace(data.directions[0], weight=2.0),)
  others = [
    dataclasses.replace(data, mixing_temperature=2.0),
    dataclasses.replace(data, directions=heavier + data.directions[1:]),
    dataclasses.replace(data, target_tag='<to_{lang}>'),
    dataclasses.replace(data, directions=data.directions[:2]),
  ]
  names = {prepare.prepare(each).directory.name for each in others}
  assert len(names | {corpus.directory.name}) == 5
  assert all(name.split('-unigram')[0].endswith('directions') for name in names)


def test_a_given_tokenizer_must_have_the_tags(text):
  (text / 'bare.model').write_bytes(
    train(['one two three four'] * 9, TokenizerConfig(vocabulary_size=16))
  )
  tokenizer = TokenizerConfig(source_model='bare.model')
  message = "the tag '<2de>' is no piece of the tokenizer; train it with"
  with pytest.raises(InputError, match=message) as raised:
    prepare.prepare(several(text, tokenizer=tokenizer))
  assert '\n' not in str(raised.value)
  assert not list((text / 'prepared').glob('.*'))


def test_a_tagged_tokenizer_shares_its_model(corpus):
  plain = corpus.source_tokenizer
  tagged = plain.tagged(['<2de>', '<2fr>'])
  assert tagged.tags == (4, 5)
  assert plain.tags == ()
  assert tagged.encode('one') == [4, 5, *plain.encode('one')]
  assert tagged.encode('') == []
  assert tagged.encode_lines(['', 'one']) == [[], tagged.encode('one')]
  assert tagged.sample('one', 0.1, 3)[:2] == [4, 5]
  assert tagged.sample('one', 0.1, 3)[2:] == plain.sample('one', 0.1, 3)
  assert tagged.tagged([]).tags == ()
  assert tagged.tagged(['<2en>']).encode('one')[0] == 6
  copy = pickle.loads(pickle.dumps(tagged))
  assert isinstance(copy, Tokenizer)
  assert copy.encode('one') == tagged.encode('one')
  assert copy.digest == plain.digest
