"""What the JobSet's container does with a stop and with exit codes."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from launching import read, stand_in

# Trains until SIGTERM, then saves.
_TRAINING = [
  'def save(*ignored):',
  '  sys.exit(int(os.environ["CODE"]))',
  'signal.signal(signal.SIGTERM, save)',
  'open(sys.argv[0] + ".ready", "w").close()',
  # A signal just before signal.pause() would be waited for once more.
  'import time',
  'while True: time.sleep(0.01)',
]


def _start(folder: Path, training: list[str], code: int) -> subprocess.Popen:
  """Starts the container's command with a stand-in for Python."""
  stand_in(folder, 'python', training)
  (part,) = yaml.safe_load(read('gke-jobset.yaml'))['spec']['replicatedJobs']
  pod = part['template']['spec']['template']['spec']
  (container,) = pod['containers']
  path = f'{folder}:{os.environ["PATH"]}'
  return subprocess.Popen(
    [*container['command'], *container['args']],
    env=os.environ | {'PATH': path, 'CODE': str(code)},
  )


@pytest.mark.parametrize(
  # A pod that ends with 0 would count as done, and not start again.
  ('code', 'found'),
  [(0, 143), (2, 2)],
)
def test_a_pod_that_is_told_to_stop_has_not_succeeded(tmp_path, code, found):
  pod = _start(tmp_path, _TRAINING, code)
  deadline = time.monotonic() + 20
  while not (tmp_path / 'python.ready').exists():
    assert time.monotonic() < deadline
    time.sleep(0.01)
  pod.send_signal(signal.SIGTERM)
  assert pod.wait(timeout=20) == found
  assert "'train.py'" in (tmp_path / 'python.calls').read_text()


@pytest.mark.parametrize('code', [0, 1, 2, 137])
def test_a_pod_ends_as_its_training_does(tmp_path, code):
  pod = _start(tmp_path, [f'sys.exit({code})'], code)
  assert pod.wait(timeout=20) == code
