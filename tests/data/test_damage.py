"""Prepared corpora whose files a disk has damaged: named, never read on."""

import json
import random
import shutil

import numpy as np
import pytest

from fusion_jax.config import (
  BatchConfig,
  DataConfig,
  FilterConfig,
  TokenizerConfig,
)
from fusion_jax.data import batching, records
from fusion_jax.data.pipeline import TrainingBatches, training_iterator
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.errors import InputError
from fusion_jax.json_files import sealed
from fusion_jax.parallel.mesh import by_rows, data_mesh

_SHARD = 'parallel_text-train.array_record-00000'


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """A folder that nothing has happened to."""
  data = DataConfig(
    prepared=str(tmp_path_factory.mktemp('prepared')),
    embedded_pairs=300,
    tokenizer=TokenizerConfig(vocabulary_size=300),
    # Some pairs are longer, so that there are rows.
    filter=FilterConfig(max_length=60),
  )
  return prepare(data).directory


@pytest.fixture
def folder(whole, tmp_path):
  return shutil.copytree(whole, tmp_path / 'corpus')


@pytest.fixture
def unlisted(folder):
  """A folder whose report has no digests of the other files."""
  _edit_report(folder, files={})
  return folder


def _edit_report(folder, **changes):
  path = folder / 'report.json'
  report = json.loads(path.read_text()) | changes
  del report['sha256']
  path.write_text(json.dumps(sealed(report)))


def _refusal(read) -> str:
  with pytest.raises(InputError) as error:
    read()
  assert '\n' not in str(error.value)
  return str(error.value)


def _flip(path, position, bit=0):
  content = bytearray(path.read_bytes())
  content[position] ^= 1 << bit
  path.write_bytes(content)


def _records(shard) -> list[bytes]:
  return list(records.Reader([shard]))


def _damaged_record(whole, shard) -> int:
  """Damages a record of the shard; returns its number."""
  good = _records(whole / _SHARD)
  # The records lie one after the other from the start of the file; this is
  # the first position that belongs to one.
  for position in range(5_000, 6_000):
    shutil.copy(whole / _SHARD, shard)
    _flip(shard, position)
    reader = records.Reader([shard])
    for number in range(len(good)):
      try:
        reader[number]
      except InputError:
        return number
  raise AssertionError('no byte of these belongs to a record')


@pytest.mark.parametrize('name', ['settings.json', 'train.lengths.npy'])
def test_a_device_is_not_read(folder, name):
  (folder / name).unlink()
  (folder / name).symlink_to('/dev/null')
  message = _refusal(lambda: PreparedCorpus(folder).split('train'))
  assert message.startswith(f'{folder / name}: is a folder, a pipe or a device')


def test_one_bit_of_a_record_is_noticed_and_the_record_is_named(whole, folder):
  shard = folder / _SHARD
  number = _damaged_record(whole, shard)
  split = PreparedCorpus(folder).split('train')
  message = _refusal(lambda: split[number])
  assert message.startswith(f'{shard}, record {number}: damaged (')
  assert message.endswith(f'delete the folder {folder} and prepare it again')
  others = [n for n in range(len(split)) if n != number]
  good = PreparedCorpus(whole).split('train')
  for index in others:
    np.testing.assert_array_equal(split[index].source, good[index].source)


def test_no_flipped_bit_of_a_shard_gives_other_records(whole, tmp_path):
  shard = tmp_path / _SHARD
  content = (whole / _SHARD).read_bytes()
  good, noticed = _records(whole / _SHARD), 0
  generator = random.Random(0)
  for _ in range(60):
    shutil.copy(whole / _SHARD, shard)
    _flip(shard, generator.randrange(len(content)), generator.randrange(8))
    try:
      assert _records(shard) in (good, [])
    except InputError:
      noticed += 1
  # Half of the file is padding between and after the records.
  assert noticed > 10


def test_the_reading_threads_hand_the_damage_on(whole, folder):
  _damaged_record(whole, folder / _SHARD)
  split = PreparedCorpus(folder).split('train')
  shapes = batching.choose_shapes(split.lengths, BatchConfig(tokens=512))
  batches = TrainingBatches(split, shapes, seed=0)
  iterator = training_iterator(batches, by_rows(data_mesh()))
  epoch = batches.plan.batches_per_epoch

  def read_an_epoch():
    for _ in range(epoch):
      next(iterator)

  assert 'prepare it again' in _refusal(read_an_epoch)
  iterator.close()


@pytest.mark.parametrize(
  ('file', 'change'),
  [
    ('lengths', lambda values: values + 1),
    ('lengths', lambda values: values[:-1]),
    ('lengths', np.negative),
    ('lengths', np.ravel),
    ('lengths', np.float32),
    ('rows', lambda values: values + 10_000),
    ('rows', lambda values: values - 1),
    ('rows', lambda values: values[:-1]),
    ('rows', lambda values: values[::-1]),
    ('rows', np.zeros_like),
    ('rows', np.float64),
  ],
)
def test_an_array_that_does_not_fit_is_refused(unlisted, file, change):
  path = unlisted / f'valid.{file}.npy'
  np.save(path, change(np.load(path)))
  message = _refusal(lambda: PreparedCorpus(unlisted).split('valid'))
  assert message == (
    f"{unlisted}: split 'valid' is missing or damaged; delete the folder and "
    'prepare it again'
  )


@pytest.mark.parametrize('file', ['lengths', 'rows'])
def test_a_flipped_bit_of_an_array_is_noticed(unlisted, file):
  path = unlisted / f'valid.{file}.npy'
  content, values = path.read_bytes(), np.load(path)
  corpus, generator = PreparedCorpus(unlisted), random.Random(0)
  # The header takes 128 bytes; from byte 75 on they are padding.
  header, numbers = range(10, 75), range(128, len(content))
  for position in (*header, *generator.choices(numbers, k=60)):
    path.write_bytes(content)
    _flip(path, position, generator.randrange(8))
    try:
      corpus.split('valid')
    except InputError:
      continue
    assert position in header
    np.testing.assert_array_equal(np.load(path), values)


@pytest.mark.parametrize(
  ('file', 'change', 'message'),
  [
    ('report.json', [], 'must be an object, got []'),
    ('report.json', {'splits': []}, 'splits: must be an object, got []'),
    (
      'report.json',
      {'splits': {'train': {}}},
      'splits.train.pairs: is missing',
    ),
    ('report.json', {}, 'splits: is missing'),
    ('settings.json', {}, 'sampling: is missing'),
    ('settings.json', {'sampling': [0.0, 'x']}, 'sampling.1: must be a number'),
    ('settings.json', {'sampling': [0.0, 0.0]}, 'is missing or damaged'),
    (
      'settings.json',
      {'sampling': [0.0, 0.0], 'languages': 'en'},
      "languages: must be a list, got 'en'",
    ),
    (
      'settings.json',
      {'sampling': [0.0, 0.0], 'directions': [{'tags': []}]},
      'directions.0.languages: is missing',
    ),
  ],
)
def test_json_of_another_shape_is_refused(unlisted, file, change, message):
  (unlisted / file).write_text(json.dumps(change))
  refusal = _refusal(lambda: PreparedCorpus(unlisted))
  assert refusal.startswith(str(unlisted))
  assert message in refusal
  assert refusal.endswith('delete the folder and prepare it again')


def test_settings_of_another_corpus_are_refused(unlisted):
  splits = PreparedCorpus(unlisted).report['splits']
  splits['train']['directions'] = {'fr-de': dict(splits['train'])}
  _edit_report(unlisted, splits=splits)
  message = _refusal(lambda: PreparedCorpus(unlisted).split('train'))
  assert 'settings.json is missing or damaged' in message


def test_rows_that_are_gone_are_missed(unlisted):
  (unlisted / 'valid.rows.npy').unlink()
  message = _refusal(lambda: PreparedCorpus(unlisted).split('valid'))
  assert "split 'valid' is missing or damaged" in message


@pytest.mark.parametrize(
  'file',
  [
    'report.json',
    'settings.json',
    'source.model',
    'target.model',
    'valid.lengths.npy',
    'valid.rows.npy',
  ],
)
def test_a_file_that_is_not_what_was_written_is_named(folder, file):
  path = folder / file
  # A digit of the numbers; in the others any bit of what is there.
  content = path.read_bytes()
  position = content.find(b'0') if file.endswith('.json') else len(content) - 8
  _flip(path, position)
  message = _refusal(lambda: PreparedCorpus(folder).split('valid'))
  assert message == (
    f'{folder}: {file} is missing or damaged; delete the folder and prepare '
    'it again'
  )
