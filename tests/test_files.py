"""Files that are whole or not there, also when the process is ended."""

import bz2
import dataclasses
import gzip
import lzma
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fusion_jax import files
from fusion_jax.errors import InputError
from fusion_jax.files import (
  check_new_folder,
  open_file,
  open_to_write,
  parse_json,
  read_json,
  same_file,
  whole_file,
  whole_folder,
  write_whole,
)


def test_a_file_appears_when_it_is_whole(tmp_path):
  path = tmp_path / 'file'
  path.write_bytes(b'old')
  with whole_file(path) as file:
    file.write(b'new')
    file.flush()
    assert path.read_bytes() == b'old'
  assert path.read_bytes() == b'new'
  assert list(tmp_path.iterdir()) == [path]


def _fail_in_file(path, error):
  with whole_file(path) as file:
    file.write(b'new')
    raise error


def _fail_in_folder(path, error):
  with whole_folder(path) as folder:
    (folder / 'part').write_bytes(b'new')
    raise error


@pytest.mark.parametrize('error', [ValueError, KeyboardInterrupt, SystemExit])
def test_what_fails_leaves_what_was_there(tmp_path, error):
  path = tmp_path / 'file'
  path.write_bytes(b'old')
  with pytest.raises(error):
    _fail_in_file(path, error)
  with pytest.raises(error):
    _fail_in_folder(tmp_path / 'folder', error)
  assert path.read_bytes() == b'old'
  assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
  (tmp_path / 'link').symlink_to('file')
  write_whole(tmp_path / 'link', b'new')
  assert (tmp_path / 'link').is_symlink()
  assert (tmp_path / 'file').read_bytes() == b'new'


def test_a_link_in_the_way_is_not_followed(tmp_path, monkeypatch):
  monkeypatch.setattr(files.secrets, 'token_hex', lambda _: 'guessed')
  (tmp_path / 'theirs').write_bytes(b'theirs')
  (tmp_path / '.guessed.part').symlink_to('theirs')
  with pytest.raises(InputError, match='file: cannot be written: File exists'):
    write_whole(tmp_path / 'file', b'mine')
  assert (tmp_path / 'theirs').read_bytes() == b'theirs'


def test_a_folder_is_new_or_empty(tmp_path):
  (tmp_path / 'file').touch()
  with pytest.raises(InputError, match=r'--output=.*file: is a file'):
    check_new_folder(tmp_path / 'file')
  with pytest.raises(InputError, match='not empty'):
    check_new_folder(tmp_path)
  (tmp_path / 'empty').mkdir()
  check_new_folder(tmp_path / 'empty')
  with whole_folder(tmp_path / 'empty') as folder:
    (folder / 'part').touch()
  assert (tmp_path / 'empty' / 'part').exists()


def test_one_file_in_many_spellings(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'file').touch()
  (tmp_path / 'other').touch()
  os.link('file', 'hard')
  os.symlink('file', 'soft')
  (tmp_path / 'folder').mkdir()
  for name in ('./file', 'folder/../file', str(tmp_path / 'file')):
    assert same_file('file', name)
  assert same_file('hard', 'soft')
  assert same_file('absent', './absent')
  assert not same_file('file', 'other')
  assert not same_file('file', 'absent')


@pytest.mark.parametrize('opened', ['whole_file', 'whole_folder'])
def test_sigterm_removes_what_is_unfinished(tmp_path, opened):
  code = (
    'import pathlib, sys, time\n'
    'from fusion_jax.startup import one_line_errors\n'
    f'from fusion_jax.files import {opened}\n'
    '@one_line_errors\n'
    'def main():\n'
    f'  with {opened}(pathlib.Path(sys.argv[1])) as target:\n'
    "    print('open', flush=True)\n"
    '    time.sleep(60)\n'
    'main()\n'
  )
  with subprocess.Popen(
    [sys.executable, '-c', code, tmp_path / 'out'], stdout=subprocess.PIPE
  ) as process:
    assert process.stdout.readline() == b'open\n'
    assert len(list(tmp_path.iterdir())) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM
  assert list(tmp_path.iterdir()) == []


_OPENERS = {'': open, '.gz': gzip.open, '.bz2': bz2.open, '.xz': lzma.open}
_PACKED = ('.gz', '.bz2', '.xz')
_CONTENT = ''.join(f'line {i}\n' for i in range(1_000)).encode()


def _read(path):
  with open_file(path) as file:
    return file.read()


@pytest.mark.parametrize('suffix', _OPENERS)
def test_the_name_says_how_a_file_is_written_and_read(tmp_path, suffix):
  paths = [tmp_path / f'{name}{suffix}' for name in 'ab']
  for path in paths:
    with open_to_write(path) as file:
      file.write(_CONTENT)
      assert not path.exists()
  assert sorted(tmp_path.iterdir()) == paths
  with _OPENERS[suffix](paths[0], 'rb') as file:
    assert file.read() == _CONTENT
  assert paths[0].read_bytes() == paths[1].read_bytes()
  assert _read(paths[0]) == _CONTENT


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


@dataclasses.dataclass
class _Shape:
  name: str
  sizes: list[int] = dataclasses.field(default_factory=list)


# A number has at most 4,300 digits, and UTF-8 has no half of a pair.
_NO_JSON = (
  '{"name": ',
  b'\xff',
  '9' * 5_000,
  '[NaN]',
  '[1e999]',
  '["\\ud800"]',
)


def _refusal(read, *arguments) -> str:
  with pytest.raises(InputError) as raised:
    read(*arguments)
  assert '\n' not in str(raised.value)
  return str(raised.value)


def test_what_fits_is_handed_on_whole():
  text = '{"name": "\\ud83d\\ude00", "more": [1.5, null]}'
  found = {'name': '😀', 'more': [1.5, None]}
  assert parse_json(text, 'here', _Shape) == found


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    *((text, 'here: not JSON: ') for text in _NO_JSON),
    ('[' * 100_000, 'here: nested too deep'),
    ('[]', 'here: must be an object, got []'),
    ('{}', 'here: name: is missing'),
    (
      '{"name": "a", "sizes": [1, "x"]}',
      "here: sizes.1: must be a whole number, got 'x'",
    ),
  ],
)
def test_what_does_not_fit_is_named(text, message):
  assert _refusal(parse_json, text, 'here', _Shape).startswith(message)


def test_a_file_is_named(tmp_path):
  missing = tmp_path / 'none'
  assert f'{missing}: cannot be read: ' in _refusal(read_json, missing)


@pytest.mark.parametrize('place', ['/dev/zero', '/'])
def test_what_is_no_file_is_not_read(place):
  said = 'is a folder, a pipe or a device, not a file'
  assert _refusal(read_json, Path(place)) == f'{place}: {said}'


def test_links_that_lead_to_each_other_are_one_line(tmp_path):
  (tmp_path / 'one').symlink_to(tmp_path / 'two')
  (tmp_path / 'two').symlink_to(tmp_path / 'one')
  with pytest.raises(InputError, match='one: cannot be written: Too many'):
    write_whole(tmp_path / 'one', b'x')
  with (
    pytest.raises(InputError, match='cannot be written: Too many'),
    whole_folder(tmp_path / 'one' / 'folder'),
  ):
    pass
