"""The files of launch/: their syntax, their flags, the files they name."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from launching import LAUNCH, ROOT, read

from fusion_jax.cli import train
from fusion_jax.config import ExperimentConfig

_SHELL = ['slurm.sh', 'cloud-tpu.sh']


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
