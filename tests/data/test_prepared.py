"""Prepared corpora whose files a disk has damaged: named, never read on."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from fusion_jax.config import (
  BatchConfig,
  DataConfig,
  FilterConfig,
  TokenizerConfig,
)
from fusion_jax.data import batching
from fusion_jax.data.pipeline import TrainingBatches, training_iterator
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus, Records
from fusion_jax.errors import InputError
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


def _refusal(read) -> str:
  with pytest.raises(InputError) as error:
    read()
  assert '\n' not in str(error.value)
  return str(error.value)


def _flip(path, position, bit=0):
  content = bytearray(path.read_bytes())
  content[position] ^= 1 << bit
  path.write_bytes(content)


def _damaged_record(whole, folder) -> int:
  """Damages a record of the training split; returns its number."""
  # The records lie one after the other from the start of the file; this is
  # the first position that belongs to one.
  for position in range(5_000, 6_000):
    shutil.copy(whole / _SHARD, folder / _SHARD)
    _flip(folder / _SHARD, position)
    records = Records(folder, 'train')
    for number in range(len(records)):
      try:
        records[number]
      except InputError:
        return number
  raise AssertionError('no byte of these belongs to a record')


def test_one_bit_of_a_record_is_noticed_and_the_record_is_named(whole, folder):
  number = _damaged_record(whole, folder)
  split = PreparedCorpus(folder).split('train')
  message = _refusal(lambda: split[number])
  assert message.startswith(f'{folder}: {_SHARD}, record {number} is missing')
  assert message.endswith('; delete the folder and prepare it again')
  good = PreparedCorpus(whole).split('train')
  for index in set(range(len(split))) - {number}:
    np.testing.assert_array_equal(split[index].source, good[index].source)


def test_no_flipped_bit_of_a_shard_gives_other_records(whole, tmp_path):
  content = (whole / _SHARD).read_bytes()
  good, noticed = list(Records(whole, 'train')), 0
  generator = random.Random(0)
  for _ in range(60):
    shutil.copy(whole / _SHARD, tmp_path)
    position = generator.randrange(len(content))
    _flip(tmp_path / _SHARD, position, generator.randrange(8))
    try:
      assert list(Records(tmp_path, 'train')) in (good, [])
    except InputError:
      noticed += 1
  # Half of the file is padding between and after the records.
  assert noticed > 10


def test_the_reading_threads_hand_the_damage_on(whole, folder):
  _damaged_record(whole, folder)
  split = PreparedCorpus(folder).split('train')
  shapes = batching.choose_shapes(split.lengths, BatchConfig(tokens=512))
  batches = TrainingBatches(split, shapes, seed=0)
  iterator = training_iterator(batches, by_rows(data_mesh()))

  def read_an_epoch():
    for _ in range(batches.plan.batches_per_epoch):
      next(iterator)

  assert 'prepare it again' in _refusal(read_an_epoch)
  iterator.close()


def _cut(path):
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip_one(path):
  # A digit of the numbers; in the others any bit of what is there.
  content = path.read_bytes()
  is_json = path.suffix == '.json'
  _flip(path, content.find(b'0') if is_json else len(content) - 8)


def _is_a_device(path):
  path.unlink()
  path.symlink_to('/dev/null')


@pytest.mark.parametrize('damage', [_flip_one, Path.unlink, _is_a_device])
@pytest.mark.parametrize(
  'file', ['report.json', 'settings.json', 'source.model', 'valid.rows.npy']
)
def test_a_file_that_is_not_what_was_written_is_named(folder, file, damage):
  damage(folder / file)
  message = _refusal(lambda: PreparedCorpus(folder).split('valid'))
  assert message == (
    f'{folder}: {file} is missing or damaged; delete the folder and prepare '
    'it again'
  )


@pytest.mark.parametrize('damage', [_cut, Path.unlink])
def test_a_shard_that_is_cut_or_gone_is_missed(folder, damage):
  damage(folder / _SHARD)
  message = _refusal(lambda: PreparedCorpus(folder).split('train'))
  assert "split 'train' is missing or damaged; delete the folder" in message
