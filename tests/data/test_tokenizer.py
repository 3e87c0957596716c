"""SentencePiece models: training, round trips, sampling, given models."""

import collections
import concurrent.futures
import io
import itertools
import math
import pickle

import hypothesis
import pytest
import sentencepiece
from hypothesis import strategies
from sentencepiece import sentencepiece_model_pb2

from fusion_jax.config import TokenizerConfig
from fusion_jax.data import tokenizer as tokenizer_lib
from fusion_jax.data.tokenizer import Tokenizer, normalise
from fusion_jax.errors import InputError

SYLLABLES = ('re', 'ver', 'o', 'la', 'stan', 'ti', 'mu', 'ke')
WORDS = [''.join(word) for word in itertools.product(SYLLABLES, repeat=3)]
LINES = [
  ' '.join(WORDS[(i * i * k + k) % len(WORDS)] for k in range(1, 9))
  for i in range(300)
]
ALGORITHMS = ('unigram', 'bpe')


def trained(**fields):
  fields = {'vocabulary_size': 60} | fields
  return Tokenizer(tokenizer_lib.train(LINES, TokenizerConfig(**fields)))


@pytest.fixture(scope='module')
def tokenizers():
  return {
    algorithm: trained(
      algorithm=algorithm, vocabulary_size=320, byte_fallback=True
    )
    for algorithm in ALGORITHMS
  }


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_training_twice_gives_the_same_model(algorithm, capfd):
  first, second = (trained(algorithm=algorithm) for _ in range(2))
  assert first.model == second.model
  assert capfd.readouterr() == ('', '')
  # pad 0, unk 1, bos 2, eos 3.
  symbols = tokenizer_lib.Vocabulary(60, start=2, end=3, unknown=1)
  assert first.vocabulary == symbols


@pytest.mark.parametrize('algorithm', ALGORITHMS)
@hypothesis.settings(max_examples=150)
@hypothesis.given(text=strategies.text(), seed=strategies.integers())
def test_decoding_gives_back_any_line(tokenizers, algorithm, text, seed):
  line = normalise(text)
  tokenizer = tokenizers[algorithm]
  assert tokenizer.decode(tokenizer.encode(line)) == line
  assert tokenizer.decode(tokenizer.sample(line, 0.3, seed)) == line


def test_decoding_leaves_symbols_out(tokenizers):
  tokenizer = tokenizers['unigram']
  ids = tokenizer.encode('overla stanti')
  assert tokenizer.decode([2, *ids, 3, 0, 0]) == 'overla stanti'
  assert tokenizer.decode([]) == ''


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_samples_depend_on_the_seed_alone(tokenizers, algorithm):
  tokenizer = tokenizers[algorithm]
  draws = [(line, seed) for line in LINES[:20] for seed in range(40)]

  def draw(arguments):
    return tokenizer.sample(arguments[0], 0.2, arguments[1])

  one_by_one = [draw(arguments) for arguments in draws]
  assert len({tuple(ids) for ids in one_by_one[:40]}) > 10
  with concurrent.futures.ThreadPoolExecutor(4) as threads:
    assert list(threads.map(draw, reversed(draws))) == one_by_one[::-1]


@pytest.mark.parametrize('byte_fallback', [True, False])
def test_the_limits_of_sampling_are_the_plain_segmentation(byte_fallback):
  # P(x)^alpha with a large alpha leaves the best path; BPE without dropout
  # does all merges. Unknown characters included.
  for algorithm, limit in (('unigram', 1e4), ('bpe', 1e-12)):
    tokenizer = trained(
      algorithm=algorithm,
      vocabulary_size=320 if byte_fallback else 90,
      byte_fallback=byte_fallback,
    )
    for line in [*LINES, 'o\u6f22\u5b57 \u6f22 ver', '\u6f22', '']:
      assert tokenizer.sample(line, limit, 3) == tokenizer.encode(line)


def test_pieces_across_spaces_are_sampled_too():
  model = given_model(
    split_by_whitespace=False, eos_id=3, bos_id=2, pad_id=0, unk_id=1
  )
  tokenizer = Tokenizer(model)
  processor = sentencepiece.SentencePieceProcessor(model_proto=model)
  pieces = [processor.id_to_piece(each) for each in range(60)]
  assert any('\u2581' in piece[1:] for piece in pieces)
  for line in LINES[:50]:
    assert tokenizer.sample(line, 1e4, 3) == tokenizer.encode(line)


def test_unigram_samples_follow_the_smoothed_model():
  # Kudo (2018), section 3.2: P(x|X)^alpha over the segmentations, here of
  # one word: fewer than 512, so the n-best list has them all.
  tokenizer = trained(vocabulary_size=40)
  processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
  alpha, draws = 0.5, 4_000
  scores = {
    tuple(ids): alpha * sum(processor.get_score(each) for each in ids)
    for ids in processor.nbest_encode('over', nbest_size=512)
  }
  assert 1 < len(scores) < 512
  total = sum(math.exp(score) for score in scores.values())
  counts = collections.Counter(
    tuple(tokenizer.sample('over', alpha, seed)) for seed in range(draws)
  )
  assert set(counts) <= set(scores)
  for ids, score in scores.items():
    share = math.exp(score) / total
    deviation = math.sqrt(share * (1 - share) / draws)
    assert abs(counts[ids] / draws - share) < 4.5 * deviation + 1e-9


def test_bpe_dropout_of_one_leaves_characters(tokenizers):
  # Provilkov et al. (2020), section 3: with p = 1 no merge is done.
  tokenizer = tokenizers['bpe']
  # Eight characters and the sign for the space before them.
  assert len(tokenizer.sample('overover', 1.0, 5)) == 9
  assert len(tokenizer.encode('overover')) < 9


def test_a_tokenizer_pickles(tokenizers):
  copy = pickle.loads(pickle.dumps(tokenizers['bpe']))
  assert copy.digest == tokenizers['bpe'].digest
  assert copy.encode(LINES[0]) == tokenizers['bpe'].encode(LINES[0])


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_a_vocabulary_too_large_names_the_largest(algorithm):
  with pytest.raises(InputError, match='largest possible is ') as raised:
    trained(algorithm=algorithm, vocabulary_size=5_000)
  largest = int(str(raised.value).rsplit(' ', 1)[1].replace(',', ''))
  fitting = trained(algorithm=algorithm, vocabulary_size=largest)
  assert fitting.vocabulary.size == largest
  with pytest.raises(InputError, match='largest possible'):
    trained(algorithm=algorithm, vocabulary_size=largest + 1)


def test_a_vocabulary_too_small_names_what_the_characters_need():
  with pytest.raises(InputError, match='characters of this text alone need'):
    trained(vocabulary_size=10)


def test_no_text_is_no_tokenizer():
  with pytest.raises(InputError, match='no text'):
    tokenizer_lib.train([], TokenizerConfig())


def given_model(**symbols):
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(LINES),
    model_writer=model,
    vocab_size=60,
    minloglevel=2,
    **symbols,
  )
  return model.getvalue()


def test_a_given_model_without_start_starts_with_its_end(tmp_path):
  path = tmp_path / 'given.model'
  path.write_bytes(given_model(bos_id=-1, eos_id=5))
  vocabulary = Tokenizer.from_file(path).vocabulary
  assert (vocabulary.start, vocabulary.end) == (5, 5)
  # SentencePiece's own default ids.
  path.write_bytes(given_model())
  vocabulary = Tokenizer.from_file(path).vocabulary
  assert (vocabulary.unknown, vocabulary.start, vocabulary.end) == (0, 1, 2)


def _same_piece_twice():
  """A model with a piece twice that is not UTF-8, nor is the message of it."""
  model = sentencepiece_model_pb2.ModelProto()
  model.pieces.add(piece='<unk>', type=model.SentencePiece.UNKNOWN)
  for _ in range(2):
    model.pieces.add(piece='twice')
  spec = model.trainer_spec
  spec.bos_id = spec.eos_id = spec.pad_id = -1
  return model.SerializeToString().replace(b'twice', b'\xbfwice')


def test_a_given_model_that_cannot_serve_is_named(tmp_path):
  path = tmp_path / 'given.model'
  with pytest.raises(InputError, match=r'given\.model: cannot be read'):
    Tokenizer.from_file(path)
  path.write_bytes(given_model(eos_id=-1))
  with pytest.raises(InputError, match=r'given\.model: has no end symbol'):
    Tokenizer.from_file(path)
  for content in (b'', b'no model', _same_piece_twice()):
    path.write_bytes(content)
    with pytest.raises(InputError, match=r'given\.model: not a SentencePiece'):
      Tokenizer.from_file(path)


def test_a_piece_with_a_null_character_is_named():
  model = sentencepiece_model_pb2.ModelProto.FromString(given_model())
  model.pieces[-1].piece = 'a\0b'
  with pytest.raises(InputError, match=r'with the character U\+0000'):
    Tokenizer(model.SerializeToString(), 'given.model')


def test_an_error_in_the_text_comes_as_it_is():
  error = InputError('train.de, line 2: not UTF-8')

  def lines():
    yield 'one line'
    raise error

  with pytest.raises(InputError) as raised:
    tokenizer_lib.train(lines(), TokenizerConfig(vocabulary_size=20))
  assert raised.value is error
