"""Reading parallel text: files, TFDS datasets, the embedded corpus."""

import gzip
import unicodedata

import hypothesis
import pytest
import tensorflow_datasets as tfds
from hypothesis import strategies

from fusion_jax.config import DataConfig
from fusion_jax.data.corpora import open_corpus
from fusion_jax.data.tokenizer import normalise
from fusion_jax.errors import InputError

PAIRS = [('A house.', 'Ein Haus.'), ('Two cats!', 'Zwei Katzen!')]


def data_in(directory, **fields):
  return DataConfig(root=str(directory), **fields)


def write_files(directory, pattern='t.{lang}', pairs=PAIRS, opener=open):
  for side, language in enumerate(('en', 'de')):
    path = directory / pattern.replace('{lang}', language)
    with opener(path, 'wb') as file:
      file.write(''.join(pair[side] + '\n' for pair in pairs).encode())


def read(corpus, data):
  return list(open_corpus(corpus, data).read())


def count(corpus, data):
  return open_corpus(corpus, data).count()


def fingerprint(corpus, data):
  return open_corpus(corpus, data).fingerprint()


def test_compressed_files_are_read(tmp_path):
  write_files(tmp_path, 't.{lang}.gz', opener=gzip.open)
  data = data_in(tmp_path)
  assert read('t.{lang}.gz', data) == PAIRS
  assert count('t.{lang}.gz', data) == 2


def test_a_line_ends_at_newlines_only(tmp_path):
  # str.splitlines would cut at U+2028, U+0085 and a lone carriage return.
  (tmp_path / 't.en').write_bytes('a\u2028b\u0085c\rd\r\ne'.encode())
  (tmp_path / 't.de').write_bytes('\ufeffx\r\n\ny'.encode())
  with pytest.raises(InputError, match=r't\.en has 2 .*t\.de has 3'):
    read('t.{lang}', data_in(tmp_path))
  (tmp_path / 't.de').write_bytes(b'x\r\ny')
  assert read('t.{lang}', data_in(tmp_path)) == [
    ('a\u2028b\u0085c\rd', 'x'),
    ('e', 'y'),
  ]


@pytest.mark.parametrize(
  ('raw', 'expected'),
  [
    ('\ufeffbom\r\n', 'bom'),
    ('e\u0301te\u0301', '\u00e9t\u00e9'),
    ('a\x00b\x1f\u0085c', 'a b c'),
    (' a\u00a0\u202fb\u3000c\t ', 'a b c'),
    ('\u2581a\u2581b', 'a b'),
    # A mark that is removed must not keep a letter from its accent.
    ('e\ufeff\u0301', '\u00e9'),
    ('keep \u200b \ufb01', 'keep \u200b \ufb01'),
    # Zero-width space, word joiner, soft hyphen, marks of direction, variation
    # selectors, a Hangul filler, a tag: invisible alone, kept beside text.
    *((invisible, '') for invisible in '\u200b\u2060\xad\u200e\u202e\ufe0f'),
    (' \U000e0101\u115f \u034f\u3164\U000e0041\n', ''),
    ('\u2764\ufe0f', '\u2764\ufe0f'),
  ],
)
def test_normalisation_of_known_cases(raw, expected):
  assert normalise(raw) == expected


@hypothesis.settings(max_examples=200)
@hypothesis.given(strategies.text())
def test_normalised_lines_stay_as_they_are(text):
  line = normalise(text)
  assert normalise(line) == line
  assert unicodedata.is_normalized('NFC', line)
  assert line == ' '.join(line.split())
  assert all(unicodedata.category(character) != 'Cc' for character in line)


@pytest.mark.parametrize('use', [read, count])
def test_a_file_that_is_missing_or_empty_is_named(tmp_path, use):
  write_files(tmp_path)
  (tmp_path / 't.de').write_bytes(b'')
  with pytest.raises(InputError, match=r't\.de: the file is empty'):
    use('t.{lang}', data_in(tmp_path))
  (tmp_path / 't.de').unlink()
  with pytest.raises(InputError, match=r't\.de: cannot be read: No such file'):
    use('t.{lang}', data_in(tmp_path))


def test_bytes_that_are_not_utf8_are_located(tmp_path):
  write_files(tmp_path)
  (tmp_path / 't.de').write_bytes('Ein Haus.\nK\u00e4tzchen\n'.encode('latin1'))
  with pytest.raises(InputError, match=r't\.de, line 2: not UTF-8 .*byte 2'):
    read('t.{lang}', data_in(tmp_path))


@pytest.mark.parametrize(
  ('corpus', 'message'),
  [
    ('train.en.gz', 'give a file name with {lang} in it'),
    ('hf:wmt14:train', "corpus 'hf:wmt14:train': give "),
    ('embedded:dev', "no split 'dev'; it has train, valid, test"),
    ('tfds:wmt14_translate', 'give it as'),
  ],
)
def test_a_name_that_names_nothing_is_explained(tmp_path, corpus, message):
  with pytest.raises(InputError, match=message):
    open_corpus(corpus, data_in(tmp_path))


def test_the_fingerprint_is_of_the_content(tmp_path):
  write_files(tmp_path)
  write_files(tmp_path, 'copy.{lang}')
  data = data_in(tmp_path)
  before = fingerprint('t.{lang}', data)
  assert fingerprint('copy.{lang}', data) == before
  write_files(tmp_path, pairs=PAIRS[::-1])
  assert fingerprint('t.{lang}', data) != before


def test_the_embedded_corpus_has_the_sizes_of_the_config(tmp_path):
  data = data_in(tmp_path, embedded_pairs=30)
  train = read('embedded:train', data)
  assert len(train) == count('embedded:train', data) == 30
  assert all(normalise(line) == line for pair in train for line in pair)
  assert count('embedded:valid', data) == 1_000
  bigger = data_in(tmp_path, embedded_pairs=31)
  names = {fingerprint('embedded:train', fields) for fields in (data, bigger)}
  assert len(names) == 2
  with pytest.raises(InputError, match="no language 'xx'"):
    read('embedded:train', data_in(tmp_path, target_language='xx'))


@pytest.fixture
def translation_dataset(tmp_path, monkeypatch):
  """A dataset with the features of `wmt14_translate/de-en`, on disk."""
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  directory = tmp_path / 'tiny_translate' / 'de-en' / '1.0.0'
  directory.mkdir(parents=True)
  info = tfds.core.DatasetInfo(
    builder=tfds.core.DatasetIdentity(
      name='tiny_translate',
      config_name='de-en',
      version=tfds.core.Version('1.0.0'),
      data_dir=str(directory),
      module_name=__name__,
    ),
    features=tfds.features.Translation(languages=('de', 'en')),
  )
  writer = tfds.core.SequentialWriter(info, 100, file_format='array_record')
  writer.initialize_splits(['train', 'validation'])
  examples = [{'en': en + '\r', 'de': de} for en, de in PAIRS]
  writer.add_examples({'train': examples, 'validation': examples[:1]})
  writer.close_all()
  return 'tfds:tiny_translate/de-en'


def test_a_tfds_dataset_reads_in_both_directions(tmp_path, translation_dataset):
  train = f'{translation_dataset}:train'
  data = data_in(tmp_path)
  assert read(train, data) == PAIRS
  assert count(train, data) == 2
  reverse = data_in(tmp_path, source_language='de', target_language='en')
  assert read(train, reverse) == [(de, en) for en, de in PAIRS]


def test_a_tfds_split_can_be_cut(tmp_path, translation_dataset):
  data = data_in(tmp_path)
  assert read(f'{translation_dataset}:train[1:]', data) == PAIRS[1:]
  assert read(f'{translation_dataset}:validation', data) == PAIRS[:1]
  names = [f'{translation_dataset}:{cut}' for cut in ('train', 'train[:1]')]
  whole, cut = (fingerprint(name, data) for name in names)
  assert whole != cut


def test_what_a_tfds_dataset_lacks_is_named(tmp_path, translation_dataset):
  data = data_in(tmp_path)
  with pytest.raises(InputError, match=r"Unknown split 'test'.*train"):
    read(f'{translation_dataset}:test', data)
  french = data_in(tmp_path, target_language='fr')
  with pytest.raises(InputError, match="no language 'fr'; it has de, en"):
    read(f'{translation_dataset}:train', french)
  with pytest.raises(InputError, match='tfds:no_such_thing: cannot be opened'):
    read('tfds:no_such_thing:train', data)
