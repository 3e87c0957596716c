"""Files of lines: where they are cut, what is left behind."""

import gzip
import io
import logging

import pytest

from fusion_jax.cli.text_io import open_input, open_output, read_lines
from fusion_jax.errors import InputError


@pytest.mark.parametrize(
  ('content', 'lines'),
  [
    (b'', []),
    (b'\n', ['']),
    (b'a', ['a']),
    (b'a\n', ['a']),
    (b'a\n\nb', ['a', '', 'b']),
    ('\ufeffa\u2028b\x0cc\r\nd\n'.encode(), ['a\u2028b\x0cc', 'd']),
  ],
)
def test_lines_end_at_line_feeds_only(tmp_path, content, lines):
  path = tmp_path / 'text'
  path.write_bytes(content)
  with open_input(str(path)) as file:
    assert list(read_lines(file, 'text')) == lines


def test_bad_bytes_are_replaced_with_one_warning(caplog):
  file = [b'good\n', b'b\xffd\n', b'\xc3\n']
  with caplog.at_level(logging.WARNING):
    assert list(read_lines(file, 'the.txt')) == ['good', 'b\ufffdd', '\ufffd']
  assert [record.message.split(';')[0] for record in caplog.records] == [
    'the.txt, line 2: not UTF-8'
  ]


@pytest.mark.parametrize(
  ('content', 'fault'),
  [
    (
      gzip.compress(b'a\n' * 9, mtime=0),
      'line 1: is no text: it has a byte of',
    ),
    ('\ufeffa b\n'.encode('utf-16'), 'line 1: is no text: it has a byte of'),
    (b'good\n\0\1\2\n', 'line 2: is no text: it has a byte of'),
  ],
)
def test_what_is_no_text_is_refused(content, fault):
  with pytest.raises(InputError, match=fault):
    list(read_lines(io.BytesIO(content), 'the.txt'))


def test_output_appears_when_it_is_whole(tmp_path):
  path = tmp_path / 'out'
  path.write_text('old')
  with open_output(str(path)) as write:
    write('ä')
    write('')
    assert path.read_text() == 'old'
  assert path.read_bytes() == b'\xc3\xa4\n\n'
  assert list(tmp_path.iterdir()) == [path]


def test_a_device_that_never_ends_a_line_is_refused():
  with open_input('/dev/zero') as file, pytest.raises(InputError) as error:
    list(read_lines(file, '/dev/zero'))
  assert (
    str(error.value) == '/dev/zero: is no text: a line has more than 16 MiB'
  )
