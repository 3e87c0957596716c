"""Work spread over processes."""

import operator
import os
import signal
import subprocess
import sys
import time

import pytest

from fusion_jax import errors
from fusion_jax.data.workers import Workers, usable_cores
from fusion_jax.errors import InputError

PID = '__import__("os").getpid()'


def evaluated(workers, texts):
  """Values of Python expressions, of workers whose state is `eval`."""
  return workers.in_order(operator.call, texts)


@pytest.mark.parametrize('count', [1, 2])
def test_results_come_in_the_order_of_the_items(count):
  pauses = [0.3, 0, 0.1]
  texts = [f'__import__("time").sleep({pause}) or {pause}' for pause in pauses]
  with Workers(eval, count) as workers:
    assert list(evaluated(workers, texts)) == pauses


def test_items_are_read_a_few_ahead():
  read = []
  items = (read.append(number) or number for number in range(99))
  with Workers(1, 2) as workers:
    results = workers.in_order(operator.add, items)
    assert [next(results) for _ in range(20)] == list(range(1, 21))
    assert len(read) == 23


def test_an_error_for_the_user_passes():
  raising = f'exec("from {errors.__name__} import *; raise InputError(2)")'
  with Workers(eval, 2) as workers, pytest.raises(InputError, match='2'):
    list(evaluated(workers, ['1', raising]))


def test_the_processes_import_no_jax():
  module = '__import__("sys").modules'
  text = f'[__import__("fusion_jax.data.encoding"), "jax" in {module}][1]'
  with Workers(eval, 2) as workers:
    assert list(evaluated(workers, [text])) == [False]


@pytest.mark.parametrize(
  ('act', 'message'),
  [
    ('signal.raise_signal(9)', 'text ended with code -9; was the memory'),
    ('os._exit(3)', 'text ended with code 3; '),
  ],
)
def test_a_process_that_dies_is_told(act, message):
  module, _, call = act.partition('.')
  with Workers(eval, 2) as workers, pytest.raises(InputError, match=message):
    list(evaluated(workers, ['1', f'__import__("{module}").{call}', '2']))


SCRIPT = f"""
import itertools, operator, signal, sys
# A shell's background job ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
print('started', flush=True)
from fusion_jax import errors
from fusion_jax.data.workers import Workers
from fusion_jax.startup import one_line_errors

@one_line_errors
def main():
  with Workers(eval, 2) as workers:
    for pid in workers.in_order(operator.call, itertools.repeat({PID!r})):
      print(pid, flush=True)

sys.exit(main())
"""


@pytest.mark.parametrize(
  ('number', 'code', 'line'),
  [
    (signal.SIGINT, 130, 'error: interrupted\n'),
    (signal.SIGTERM, -signal.SIGTERM, ''),
    (signal.SIGKILL, -signal.SIGKILL, ''),
  ],
)
def test_no_process_outlives_an_unguarded_script(tmp_path, number, code, line):
  script = tmp_path / 'script.py'
  script.write_text(SCRIPT)
  process = subprocess.Popen(
    [sys.executable, str(script)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    process_group=0,
  )
  assert process.stdout.readline() == 'started\n'
  first = process.stdout.readline()
  os.killpg(process.pid, number)
  output, errors = process.communicate()
  assert (process.returncode, errors) == (code, line)
  pids = set(map(int, (first + output).split()))
  end = time.monotonic() + 5
  while any(map(runs, pids)):
    assert time.monotonic() < end
    time.sleep(0.01)


def runs(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  return True


def test_cores_that_are_forbidden_do_not_count():
  cores = os.sched_getaffinity(0)
  os.sched_setaffinity(0, {min(cores)})
  try:
    assert usable_cores() == 1
  finally:
    os.sched_setaffinity(0, cores)
