"""The files of launch/: syntax, flags, and what a container does at a stop."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from launching import LAUNCH, ROOT, read, stand_in

from fusion_jax.cli import train
from fusion_jax.config import ExperimentConfig

_SHELL = ['slurm.sh', 'study.sh', 'cloud-tpu.sh']


def _job() -> dict:
  """The job of a slice, of the JobSet."""
  (part,) = yaml.safe_load(read('gke-jobset.yaml'))['spec']['replicatedJobs']
  assert part['replicas'] == 1
  return part['template']['spec']


def _container() -> dict:
  (container,) = _job()['template']['spec']['containers']
  return container


def _flags(name: str) -> list[str]:
  """The flags of train.py in a file: a shell array, or a command."""
  if name.endswith('.sh'):
    (body,) = re.findall(r'^train=\(\n(.*?)^\)', read(name), re.M | re.S)
  else:
    (text,) = _container()['args']
    (body,) = re.findall(r'python train.py \\\n(.*?) &\n', text, re.S)
  return shlex.split(body.replace('\\\n', ''), comments=True)


@pytest.mark.parametrize('name', _SHELL)
def test_shell_files_are_sound(name):
  path = LAUNCH / name
  assert read(name).count('\nset -euo pipefail\n') == 1
  subprocess.run(['bash', '-n', path], check=True)
  folders = f'{Path(sys.executable).parent}:{os.environ["PATH"]}'
  shellcheck = shutil.which('shellcheck', path=folders)
  done = subprocess.run([shellcheck, path], capture_output=True, check=False)
  assert done.returncode == 0, done.stdout.decode()


@pytest.mark.parametrize(
  ('name', 'devices'),
  # 2 nodes of 4 GPUs; topology 4x4; v5litepod-16.
  [('slurm.sh', 8), ('gke-jobset.yaml', 16), ('cloud-tpu.sh', 16)],
)
def test_train_takes_the_flags(monkeypatch, name, devices):
  taken = []
  monkeypatch.chdir(ROOT)
  monkeypatch.setattr(train, 'start_logging', lambda: None)
  monkeypatch.setattr(
    'fusion_jax.training.loop.run', lambda *given: taken.append(given) or 0
  )
  assert train.main(_flags(name)) == 0
  ((config, workdir, *_),) = taken
  assert isinstance(config, ExperimentConfig)
  # Named by their file, so that two configs do not share a run directory.
  assert workdir.name == 'wmt14_base'
  rows = config.data.batch.row_multiple
  assert rows % (devices * config.optimizer.accumulation) == 0
  # On the volume that all machines see.
  if name != 'slurm.sh':
    assert Path(config.data.prepared).parent == workdir.parent


def test_the_page_names_every_file_and_no_other():
  named = set(re.findall(r'\]\(([\w.-]+)\)', read('README.md')))
  files = {path.name for path in LAUNCH.iterdir() if path.is_file()}
  assert named == files - {'README.md'}


def test_the_jobset_has_what_tpu_slices_need():
  jobset = yaml.safe_load(read('gke-jobset.yaml'))
  assert jobset['apiVersion'] == 'jobset.x-k8s.io/v1alpha2'
  assert jobset['kind'] == 'JobSet'
  assert jobset['spec']['failurePolicy']['maxRestarts'] > 0
  job, pod = _job(), _job()['template']['spec']
  # One failed pod fails the job at once, so that all start again together.
  assert job['backoffLimit'] == 0
  assert pod['restartPolicy'] == 'Never'
  assert job['completionMode'] == 'Indexed'
  # A pod for each machine: 16 chips, of which each has 4.
  topology = pod['nodeSelector']['cloud.google.com/gke-tpu-topology']
  rows, columns = map(int, topology.split('x'))
  resources = _container()['resources']
  chips = resources['limits']['google.com/tpu']
  assert resources['requests']['google.com/tpu'] == chips == 4
  assert job['parallelism'] * chips == rows * columns
  assert job['completions'] == job['parallelism']
  assert 'cloud.google.com/gke-tpu-accelerator' in pod['nodeSelector']
  (volume,), (mount,) = pod['volumes'], _container()['volumeMounts']
  assert volume['name'] == mount['name']
  assert f'--workdir={mount["mountPath"]}/' in _container()['args'][0]


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
  container = _container()
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
