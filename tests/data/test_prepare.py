"""Preparing a corpus and reading it back."""

import dataclasses
import errno
import functools
import itertools
import json
import logging
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow_datasets as tfds

from fusion_jax.config import (
  DataConfig,
  FilterConfig,
  SamplingConfig,
  TokenizerConfig,
)
from fusion_jax.data import encoding, prepare
from fusion_jax.data.corpora import Text
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError

NUMBERS, ZAHLEN = (
  line.split()
  for line in (
    'zero one two three four five six seven eight nine ten',
    'null eins zwei drei vier fünf sechs sieben acht neun zehn',
  )
)


def numbers(count, first=0):
  """Pairs of three number words, all different."""
  triples = itertools.product(range(11), repeat=3)
  return [
    (' '.join(NUMBERS[i] for i in t), ' '.join(ZAHLEN[i] for i in t))
    for t in itertools.islice(triples, first, first + count)
  ]


def write_split(directory, name, pairs):
  for side, language in enumerate(('en', 'de')):
    text = ''.join(pair[side] + '\n' for pair in pairs)
    (directory / f'{name}.{language}').write_text(text, 'utf-8')


def data_in(directory, **fields):
  fields = {
    'train': ('train.{lang}',),
    'valid': ('valid.{lang}',),
    'test': ('test.{lang}',),
    'tokenizer': TokenizerConfig(vocabulary_size=45),
  } | fields
  return DataConfig(
    root=str(directory), prepared=str(directory / 'prepared'), **fields
  )


@pytest.fixture
def text(tmp_path):
  write_split(tmp_path, 'train', numbers(300))
  write_split(tmp_path, 'valid', numbers(20, 300))
  write_split(tmp_path, 'test', numbers(10, 320))
  return tmp_path


def decoded(corpus, split):
  decode = corpus.source_tokenizer.decode, corpus.target_tokenizer.decode
  return [
    tuple(one(ids) for one, ids in zip(decode, split[index], strict=True))
    for index in range(len(split))
  ]


@pytest.mark.parametrize('joint', [True, False])
def test_every_pair_comes_back(text, joint):
  tokenizer = TokenizerConfig(vocabulary_size=26 + 14 * joint, joint=joint)
  write_split(text, 'more', numbers(5, 300))
  both = 'train.{lang}', 'more.{lang}'
  corpus = prepare.prepare(data_in(text, tokenizer=tokenizer, train=both))
  assert decoded(corpus, corpus.split('train')) == numbers(305)
  assert decoded(corpus, corpus.split('valid')) == numbers(20, 300)
  sources, targets = corpus.split('test').texts()
  assert list(zip(sources, targets, strict=True)) == numbers(10, 320)
  same = corpus.source_tokenizer.digest == corpus.target_tokenizer.digest
  assert same == joint


def test_examples_end_and_have_the_stored_lengths(text):
  split = prepare.prepare(data_in(text)).split('train')
  assert split.lengths.dtype == np.int32
  assert split.lengths.shape == (len(split), 2) == (300, 2)
  assert isinstance(split.lengths, np.memmap)
  for index in range(300):
    for side, ids in enumerate(split[index]):
      assert ids.dtype == np.int32
      assert len(ids) == split.lengths[index, side]
      # The end symbol is 3, the start symbol 2.
      assert np.flatnonzero(ids == 3).tolist() == [len(ids) - 1]
      assert 2 not in ids
  with pytest.raises(IndexError):
    split[300]


def test_the_folder_is_a_tfds_dataset(text):
  corpus = prepare.prepare(data_in(text))
  builder = tfds.builder_from_directory(corpus.directory)
  for name in ('train', 'valid'):
    source = builder.as_data_source(split=name)
    split = corpus.split(name)
    assert len(source) == len(split)
    for index, side in itertools.product((0, 7), ('source', 'target')):
      ids = getattr(split[index], side)
      np.testing.assert_array_equal(source[index][side], ids)


def test_many_shards_read_as_one(text, monkeypatch):
  monkeypatch.setattr(prepare, '_CHUNK', 7)
  monkeypatch.setattr(prepare, '_PAIRS_PER_SHARD', 40)
  corpus = prepare.prepare(data_in(text))
  assert len(list(corpus.directory.glob('*-train.array_record-*'))) == 8
  assert decoded(corpus, corpus.split('train')) == numbers(300)
  assert corpus.split('train').lengths.shape == (300, 2)


def test_any_number_of_processes_writes_the_same_bytes(text, monkeypatch):
  monkeypatch.setattr(prepare, '_CHUNK', 16)
  extra = [numbers(1)[0], ('', 'eins'), *numbers(20, 200), *numbers(40, 320)]
  write_split(text, 'train', numbers(300) + extra)
  write_split(text, 'valid', [*numbers(40, 400), ('one', '')])
  sampling = SamplingConfig(target_alpha=0.2)
  limits = FilterConfig(max_length=20, drop_duplicates=True)
  data = data_in(text, filter=limits, sampling=sampling)
  written = []
  for count in (1, 3):
    monkeypatch.setattr(prepare, '_process_count', lambda _, n=count: n)
    folder = str(text / str(count))
    corpus = prepare.prepare(dataclasses.replace(data, prepared=folder))
    files = sorted(corpus.directory.iterdir())
    written.append({path.name: path.read_bytes() for path in files})
  assert corpus.report['splits']['train']['dropped']['duplicate'] == 21
  assert written[0] == written[1]


def test_only_large_corpora_start_processes(text, monkeypatch):
  monkeypatch.setattr(prepare, 'usable_cores', lambda: 99)
  texts = [Text(data_in(text), data_in(text).all_directions[0])]
  monkeypatch.setattr(prepare, '_PAIRS_FOR_PROCESSES', 331)
  assert prepare._process_count(texts) == 1
  monkeypatch.setattr(prepare, '_PAIRS_FOR_PROCESSES', 330)
  assert prepare._process_count(texts) == 16


def test_the_folder_is_found_again_and_depends_on_the_content(text):
  data = data_in(text)
  first = prepare.prepare(data)
  before = first.directory.stat().st_mtime_ns
  assert prepare.prepare(data).directory == first.directory
  assert first.directory.stat().st_mtime_ns == before
  others = [
    dataclasses.replace(data, tokenizer=TokenizerConfig(vocabulary_size=46)),
    dataclasses.replace(data, filter=FilterConfig(max_length=99)),
    dataclasses.replace(data, sampling=SamplingConfig(source_alpha=0.1)),
    dataclasses.replace(data, test=()),
    dataclasses.replace(data, source_language='de', target_language='en'),
  ]
  directories = {prepare.prepare(each).directory for each in others}
  write_split(text, 'valid', numbers(21, 300))
  directories |= {prepare.prepare(data).directory, first.directory}
  assert len(directories) == 7


def test_a_split_without_corpora_is_not_there(text):
  corpus = prepare.prepare(data_in(text, test=()))
  assert corpus.has_split('valid')
  assert not corpus.has_split('test')
  with pytest.raises(InputError, match="no split 'test'; it has train, valid"):
    corpus.split('test')


def test_the_filter_gives_the_first_reason():
  config = FilterConfig(max_length=20, max_length_ratio=2.0)
  cases = [
    (('', 'b'), (1, 2), encoding.EMPTY),
    (('a', ''), (2, 1), encoding.EMPTY),
    (('a', 'b'), (2, 21), encoding.TOO_LONG),
    (('a', 'b'), (20, 20), None),
    # No longer than ten: any ratio is let through.
    (('d', 'd'), (1, 10), None),
    (('e', 'e'), (5, 11), encoding.LENGTH_RATIO),
    (('f', 'f'), (12, 6), None),
    (('g', 'g'), (13, 6), encoding.LENGTH_RATIO),
  ]
  for texts, lengths, expected in cases:
    assert encoding.reason(texts, lengths, config) == expected, texts
  assert encoding.reason(('a', 'b'), (1, 128), FilterConfig()) is None


def test_what_is_dropped_is_no_pair_to_repeat():
  keys = [b'1', b'2', b'1', b'3', b'2']
  none = np.zeros([5, 2], np.int32)
  reasons = [None, encoding.TOO_LONG, None, None, None]
  seen = {b'3'}
  chunk = encoding.EncodedChunk([b''] * 5, none, none, reasons, keys)
  chunk.mark_repetitions(seen)
  assert chunk.reasons == [
    None, encoding.TOO_LONG, encoding.DUPLICATE, encoding.DUPLICATE, None,
  ]  # fmt: skip
  assert seen == {b'1', b'2', b'3'}


def test_the_report_says_what_fell_out(text, caplog):
  long = (' '.join(NUMBERS * 3), 'null')
  extra = [('', 'eins'), ('one', ''), long, numbers(1)[0]]
  write_split(text, 'train', numbers(300) + extra)
  limits = FilterConfig(max_length=30, drop_duplicates=True)
  with caplog.at_level(logging.INFO):
    corpus = prepare.prepare(data_in(text, filter=limits))
  train = corpus.report['splits']['train']
  assert (train['pairs'], train['kept']) == (304, 300)
  assert train['dropped'] == {
    'empty': 2, 'too long': 1, 'length ratio': 0, 'duplicate': 1,
  }  # fmt: skip
  assert decoded(corpus, corpus.split('train')) == numbers(300)
  lengths = corpus.split('train').lengths
  assert train['subwords'] == lengths.sum(axis=0).tolist()
  saved = json.loads((corpus.directory / 'report.json').read_text('utf-8'))
  assert saved == corpus.report
  assert 'length ratio' in caplog.text


def test_held_out_pairs_keep_their_text_whatever_their_length(text):
  long = (' '.join(NUMBERS * 3), 'null')
  held_out = [long, ('', 'eins'), *numbers(3), numbers(1)[0]]
  write_split(text, 'valid', held_out)
  limits = FilterConfig(max_length=30, drop_duplicates=True)
  corpus = prepare.prepare(data_in(text, filter=limits))
  split = corpus.split('valid')
  assert list(zip(*split.texts(), strict=True)) == held_out
  assert decoded(corpus, split) == held_out[2:]
  assert split.lengths.max() <= 30


def test_sampled_text_stays_within_its_stored_length(text):
  sampling = SamplingConfig(source_alpha=0.1, target_alpha=0.1)
  limits = FilterConfig(max_length=40)
  data = data_in(text, sampling=sampling, filter=limits)
  corpus = prepare.prepare(data)
  split = corpus.split('train')
  assert decoded(corpus, split) == numbers(300)
  segmentations = set()
  for index, seed in itertools.product(range(20), range(30)):
    example = split.sample(index, seed)
    again = split.sample(index, seed)
    for side, tokenizer in enumerate(
      (corpus.source_tokenizer, corpus.target_tokenizer)
    ):
      assert len(example[side]) <= split.lengths[index, side] <= 40
      assert tokenizer.decode(example[side]) == numbers(300)[index][side]
      np.testing.assert_array_equal(example[side], again[side])
    segmentations.add(example.source.tobytes())
  # Of 20 lines.
  assert len(segmentations) > 60
  assert corpus.split('valid').sample(0, 1).source.tolist() == (
    corpus.split('valid')[0].source.tolist()
  )


def test_given_models_are_used(text):
  own = prepare.prepare(data_in(text)).source_tokenizer
  (text / 'given.model').write_bytes(own.model)
  config = TokenizerConfig(source_model='given.model')
  corpus = prepare.prepare(data_in(text, tokenizer=config))
  assert corpus.target_tokenizer.digest == own.digest
  assert 'given' in corpus.directory.name
  two = TokenizerConfig(
    source_model='given.model', target_model='given.model', joint=False
  )
  corpus = prepare.prepare(data_in(text, tokenizer=two))
  assert corpus.source_tokenizer.digest == own.digest
  absent = TokenizerConfig(source_model='absent.model')
  with pytest.raises(InputError, match='cannot be read'):
    prepare.prepare(data_in(text, tokenizer=absent))


@pytest.mark.parametrize(
  ('lines', 'joint', 'expected'),
  [(0, True, range(300)), (60, True, range(9, 300, 10)),
   (3, False, (99, 199, 299)), (10_000, False, range(300))],
)  # fmt: skip
def test_the_tokenizer_sees_evenly_spaced_lines(
  text, monkeypatch, lines, joint, expected
):
  seen = []
  model = prepare.prepare(data_in(text)).source_tokenizer.model

  def train(given, *_):
    seen.append(list(given))
    return model

  monkeypatch.setattr(prepare, 'train_tokenizer', train)
  config = TokenizerConfig(
    vocabulary_size=44, joint=joint, training_lines=lines
  )
  prepare.prepare(data_in(text, tokenizer=config))
  pairs = [numbers(300)[index] for index in expected]
  if joint:
    assert seen == [[line for pair in pairs for line in pair]]
  else:
    # The two sides are trained at the same time.
    assert sorted(seen) == sorted(map(list, zip(*pairs, strict=True)))


def test_both_sides_are_trained_at_once(text, monkeypatch, caplog):
  model = prepare.prepare(data_in(text)).source_tokenizer.model
  both = threading.Barrier(2)

  def train(given, *_):
    both.wait(60)
    time.sleep(0.1)
    return model

  monkeypatch.setattr(prepare, 'train_tokenizer', train)
  often = functools.partial(prepare.tell_how_long, every=0.01)
  monkeypatch.setattr(prepare, 'tell_how_long', often)
  config = TokenizerConfig(vocabulary_size=44, joint=False, training_lines=60)
  with caplog.at_level(logging.INFO):
    prepare.prepare(data_in(text, tokenizer=config))
  for side in ('source', 'target'):
    work = f'training the {side} tokenizer'
    assert f'{work}: unigram, 44 pieces, 60 lines' in caplog.text
    assert f'{work}: since 0 s' in caplog.text


def prepared_is_empty(directory):
  folder = directory / 'prepared'
  return not folder.exists() or not list(folder.iterdir())


_NO_PAIRS = r'train: no pair of en-de is left of 300 \(300 too long\); see'


@pytest.mark.parametrize(
  ('fields', 'message'),
  [
    ({'filter': FilterConfig(max_length=2)}, _NO_PAIRS),
    ({'valid': ('train.{lang}', 'uneven.{lang}')}, 'uneven.en has 3 lines'),
  ],
)
def test_what_cannot_be_prepared_leaves_nothing(text, fields, message):
  (text / 'uneven.en').write_text('a\nb\nc\n')
  (text / 'uneven.de').write_text('a\nb\n')
  with pytest.raises(InputError, match=message):
    prepare.prepare(data_in(text, **fields))
  assert prepared_is_empty(text)


def test_a_missing_file_is_told_with_its_whole_path_and_its_field(
  text, monkeypatch
):
  monkeypatch.chdir(text)
  absent = dataclasses.replace(
    data_in(text), root='.', test=('absent/t.{lang}',)
  )
  with pytest.raises(InputError) as error:
    prepare.prepare(absent)
  assert str(error.value) == (
    f'{text}/absent/t.en: no such file; config.data.test names it by '
    "'absent/t.{lang}', and config.data.root is '.'"
  )
  assert prepared_is_empty(text)


def test_a_full_disk_is_one_line_and_leaves_nothing(text, monkeypatch):
  def no_space(*_):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(prepare._SplitWriter, 'add', no_space)
  with pytest.raises(InputError, match=r'cannot be written: No space'):
    prepare.prepare(data_in(text))
  assert prepared_is_empty(text)


def test_a_disk_that_is_full_for_the_records_is_one_line(text):
  # The limit stands for a full disk: ArrayRecord has its own way to fail.
  code = (
    'import resource, signal, sys\n'
    'signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n'
    'resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))\n'
    'from array_record.python import array_record_module as module\n'
    'from fusion_jax.data import prepare\n'
    'writer = module.ArrayRecordWriter(sys.argv[1], "group_size:1")\n'
    'with prepare._writer_errors("train"):\n'
    '  for _ in range(999): writer.write(bytes(range(256)) * 9)\n'
    '  writer.close()\n'
  )
  # -B: Python would cut its own bytecode files, too, and keep them.
  ended = subprocess.run(
    [sys.executable, '-B', '-c', code, text / 'records'],
    capture_output=True,
    text=True,
  )
  last = ended.stderr.splitlines()[-1]
  assert 'InputError: the records of train cannot be written: ' in last
  assert 'File too large' in last


def test_another_process_may_make_the_folder_first(text, monkeypatch):
  made = prepare.prepare(data_in(text)).directory
  other, fill = made.rename(text / 'other'), prepare._fill

  def late(*given):
    shutil.copytree(other, made)
    return fill(*given)

  monkeypatch.setattr(prepare, '_fill', late)
  corpus = prepare.prepare(data_in(text))
  assert [path.name for path in made.parent.iterdir()] == [made.name]
  assert decoded(corpus, corpus.split('train')) == numbers(300)


def test_the_program_prints_the_folder(text, capsys):
  arguments = [
    '--config=quickstart',
    f'--config.data.prepared={text / "prepared"}',
    f'--config.data.root={text}',
    *(f'--config.data.{name}={name}.{{lang}}' for name in ('train', 'valid')),
    '--config.data.test=',
    '--config.data.tokenizer.vocabulary_size=45',
  ]
  assert prepare.main(arguments) == 0
  directory = capsys.readouterr().out.strip()
  assert Tokenizer.from_file(f'{directory}/source.model').vocabulary.size == 45
  assert prepare.main([*arguments, '--config.data.train=x']) == 2
  error = capsys.readouterr().err
  assert "error: corpus 'x': give a file name with {lang}" in error
