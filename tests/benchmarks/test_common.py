"""Programs that benchmarks start, and what ends them."""

import os
import signal
import subprocess
import threading
import time

import pytest

from benchmarks.common import metrics, start

# Says that it has begun, waits, and leaves a file where SIGTERM ends it.
_WAITS = """
import pathlib, signal, sys, time
def leave(*_):
  pathlib.Path(sys.argv[1]).with_suffix('.ended').touch()
  sys.exit(0)
signal.signal(signal.SIGTERM, leave)
pathlib.Path(sys.argv[1]).touch()
time.sleep(60)
"""


def test_what_a_program_prints_is_the_answer():
  assert start('-c', 'print(6 * 7)') == '42\n'
  with pytest.raises(subprocess.CalledProcessError):
    start('-c', 'raise SystemExit(3)')


def test_sigterm_ends_the_program_that_was_started(tmp_path):
  begun = tmp_path / 'program.begun'

  def stop_us():
    while not begun.exists():
      time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

  before = signal.getsignal(signal.SIGTERM)
  stopper = threading.Thread(target=stop_us)
  stopper.start()
  with pytest.raises(SystemExit) as error:
    start('-c', _WAITS, str(begun))
  stopper.join()
  assert error.value.code == 143
  assert begun.with_suffix('.ended').exists()
  assert signal.getsignal(signal.SIGTERM) == before


def test_a_line_that_was_cut_is_not_read(tmp_path):
  assert metrics(tmp_path, 'train') == []
  lines = '{"kind": "train", "step": 1}\n{"kind": "valid"}\n{"kind": "tra'
  (tmp_path / 'metrics.jsonl').write_text(lines)
  assert metrics(tmp_path, 'train') == [{'kind': 'train', 'step': 1}]
