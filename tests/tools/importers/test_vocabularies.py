"""SentencePiece models in the order of a foreign vocabulary."""

import io

import numpy as np
import pytest
import sentencepiece

from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.tools.importers.vocabularies import (
  Added,
  Vocabulary,
  rebuilt_tokenizers,
)

_LINES = ['a cat and a dog', 'two cats and two dogs', 'a dog at the door']
_LINES_GERMAN = ['ein hund', 'zwei hunde und eine katze', 'der hund im haus']


def _trained(path, lines, kind='unigram'):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines),
    model_writer=model,
    model_type=kind,
    vocab_size=30,
    hard_vocab_limit=kind == 'bpe',
    minloglevel=2,
  )
  path.write_bytes(model.getvalue())
  return path


def _pieces(path):
  return Tokenizer.from_file(path).pieces()[3:]


def _vocabulary(pieces):
  every = ['</s>', '<unk>', *reversed(pieces), '<pad>']
  return Vocabulary('vocab', every, '<pad>', '</s>', '<unk>')


@pytest.fixture(scope='module')
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp('models')
  return (
    _trained(folder / 'source.spm', _LINES),
    _trained(folder / 'target.spm', _LINES_GERMAN),
  )


def test_a_piece_of_the_other_side_is_decoded_and_never_found(models):
  own = [*_pieces(models[0]), 'ßt']
  (tokenizer,) = rebuilt_tokenizers(models[:1], _vocabulary(own))
  number = tokenizer.id_of('ßt')
  assert number is not None
  assert tokenizer.decode([number]) == 'ßt'
  assert number not in tokenizer.encode('aßt')


def test_a_character_that_only_the_other_side_has_is_found(models):
  own = [*_pieces(models[0]), 'ß']
  (tokenizer,) = rebuilt_tokenizers(models[:1], _vocabulary(own))
  original = Tokenizer.from_file(models[0])
  for character, piece in (('ß', 'ß'), ('z', '<unk>')):
    line = f'a ca{character} and dogs'
    cut = original.pieces(original.encode(line))
    expected = [piece if each == '<unk>' else each for each in cut]
    assert expected.count(piece) == 1
    assert tokenizer.pieces(tokenizer.encode(line)) == expected


def test_pieces_that_the_vocabulary_lacks_come_after_it(models):
  own = _pieces(models[0])
  vocabulary = _vocabulary([p for p in own if p != '▁a'])
  (tokenizer,) = rebuilt_tokenizers(models[:1], vocabulary)
  assert tokenizer.pieces() == [*vocabulary.pieces, '▁a']
  original = Tokenizer.from_file(models[0])
  cut = original.pieces(original.encode(_LINES[0]))
  assert tokenizer.pieces(tokenizer.encode(_LINES[0])) == cut


def test_added_rows_are_those_of_the_unknown_token():
  added = Added(unknown=1, before=3, after=5)
  table = np.arange(6.0).reshape(3, 2)
  np.testing.assert_array_equal(
    added.rows(table), [[0, 1], [2, 3], [4, 5], [2, 3], [2, 3]]
  )
  bias = added.bias(np.array([[0.0, 2.0, 4.0]]))
  np.testing.assert_array_equal(bias, [0, 2, 4, -28, -28])


@pytest.mark.parametrize(
  ('pieces', 'message'),
  [
    (['x', 'x'], "has the piece 'x' twice"),
    (['x'], 'has no piece of source.spm'),
  ],
)
def test_a_vocabulary_that_does_not_fit_is_refused(models, pieces, message):
  with pytest.raises(InputError, match=message):
    rebuilt_tokenizers(models[:1], _vocabulary(pieces))


def test_bpe_with_pieces_of_another_model_is_refused(tmp_path):
  path = _trained(tmp_path / 'source.spm', _LINES, 'bpe')
  assert rebuilt_tokenizers([path], _vocabulary(_pieces(path)))
  more = _vocabulary([*_pieces(path), 'zz'])
  with pytest.raises(InputError, match=r"a BPE model that lacks 1 .* 'zz'"):
    rebuilt_tokenizers([path], more)
