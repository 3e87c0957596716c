"""Compressed files: what is read and written, and how damage is told."""

import bz2
import gzip
import lzma

import pytest

from fusion_jax.compressed import open_to_read, open_to_write, unpack_errors
from fusion_jax.errors import InputError

_OPENERS = {'': open, '.gz': gzip.open, '.bz2': bz2.open, '.xz': lzma.open}
_PACKED = ('.gz', '.bz2', '.xz')
_CONTENT = ''.join(f'line {i}\n' for i in range(1_000)).encode()


def _read(path):
  with unpack_errors(path), open_to_read(path) as file:
    return file.read()


@pytest.mark.parametrize('suffix', _OPENERS)
def test_the_name_says_how_a_file_is_read(tmp_path, suffix):
  path = tmp_path / f'text{suffix}'
  with _OPENERS[suffix](path, 'wb') as file:
    file.write(_CONTENT)
  assert _read(path) == _CONTENT
  with open_to_read(path) as file:
    assert sum(1 for _ in file) == 1_000


@pytest.mark.parametrize('suffix', _OPENERS)
def test_the_name_says_how_a_file_is_written(tmp_path, suffix):
  paths = [tmp_path / f'{name}{suffix}' for name in 'ab']
  for path in paths:
    with open_to_write(path) as file:
      file.write(_CONTENT)
      assert not path.exists()
  assert sorted(tmp_path.iterdir()) == paths
  with _OPENERS[suffix](paths[0], 'rb') as file:
    assert file.read() == _CONTENT
  assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize('suffix', _PACKED)
def test_damage_is_one_line_with_the_name(tmp_path, suffix):
  path = tmp_path / f'text{suffix}'
  with _OPENERS[suffix](path, 'wb') as file:
    file.write(_CONTENT)
  path.write_bytes(path.read_bytes()[:-12])
  with pytest.raises(InputError, match=rf'text{suffix}: .* is cut off'):
    _read(path)
  path.write_bytes(b'plain text')
  with pytest.raises(InputError, match=rf'text{suffix}: (not a|cannot be) rea'):
    _read(path)


def test_nothing_is_left_of_a_file_that_failed(tmp_path):
  def fail():
    with open_to_write(tmp_path / 'text.gz') as file:
      file.write(b'half')
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    fail()
  assert not list(tmp_path.iterdir())
