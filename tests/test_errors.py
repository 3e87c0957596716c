"""How programs end where something is wrong outside of them."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import sys
from fusion_jax.errors import (CheckFailed, InputError)
from fusion_jax.startup import one_line_errors

@one_line_errors
def main(argv):
  {body}

sys.exit(main(sys.argv))
"""


def _run(body, **options):
  return subprocess.run(
    [sys.executable, '-c', _PROGRAM.format(body=body)],
    stderr=subprocess.PIPE,
    **options,
  )


@pytest.mark.parametrize(
  ('body', 'code', 'line'),
  [
    ("raise InputError('a flag')", 2, b'error: a flag'),
    ("raise CheckFailed('a check')", 1, b'failed: a check'),
    ('raise KeyboardInterrupt', 130, b'error: interrupted'),
    ("open('/none')", 2, b'error: /none: No such file or directory'),
    (
      "raise OSError(28, 'No space left on device')",
      2,
      b'error: stdout or an open file: No space left on device',
    ),
  ],
)
def test_a_line_and_an_exit_code(body, code, line):
  ended = _run(body, stdout=subprocess.PIPE)
  assert ended.returncode == code
  assert ended.stderr.splitlines() == [line]


def test_our_bugs_keep_their_traceback():
  ended = _run('1 / 0', stdout=subprocess.PIPE)
  assert ended.returncode == 1
  assert b'ZeroDivisionError' in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize('buffered', [True, False])
@pytest.mark.parametrize('body', ["print('x')", "print('x' * 99_999)"])
def test_a_full_stdout(body, buffered):
  environment = os.environ | {'PYTHONUNBUFFERED': '' if buffered else '1'}
  with open('/dev/full', 'wb') as full:
    ended = _run(body, stdout=full, env=environment)
  assert ended.returncode == 2
  assert ended.stderr == (
    b'error: stdout or an open file: No space left on device\n'
  )


def test_a_reader_that_is_gone():
  with subprocess.Popen(
    [sys.executable, '-c', _PROGRAM.format(body="print('x' * 9_999_999)")],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
  ) as process:
    process.stdout.close()
    assert process.stderr.read() == b''
  assert process.returncode == 141


def test_a_closed_stdout():
  command = [sys.executable, '-c', _PROGRAM.format(body="print('x')")]
  ended = subprocess.run(
    ['sh', '-c', 'exec "$@" >&-', 'sh', *command], stderr=subprocess.PIPE
  )
  assert (ended.returncode, ended.stderr) == (0, b'')
