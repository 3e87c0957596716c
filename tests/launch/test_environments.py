"""When train.py asks for other processes: what each launcher sets.

The environments are copied from SLURM 22.05 and Open MPI 4.1.4 as they ran two
processes; those of GKE are what jax/_src/clusters/cloud_tpu_cluster.py reads,
and that of Hydra (MPICH, Intel MPI) is from its documents.
"""

import argparse
import os
import subprocess
import sys

import pytest
from launching import ROOT

from fusion_jax.parallel.processes import (
  Processes,
  add_process_flags,
  processes_of,
)

_BATCH_SCRIPT = {
  'SLURM_JOB_ID': '2',
  'SLURM_LOCALID': '0',
  'SLURM_NPROCS': '2',
  'SLURM_NTASKS': '2',
  'SLURM_PROCID': '0',
}
_SALLOC_SHELL = _BATCH_SCRIPT | {
  'SLURM_STEP_ID': '4294967290',
  'SLURM_STEP_NODELIST': 'vm',
  'SLURM_STEP_NUM_NODES': '1',
  'SLURM_STEP_NUM_TASKS': '1',
}
_SRUN = _SALLOC_SHELL | {
  'SLURM_PROCID': '1',
  'SLURM_LOCALID': '1',
  'SLURM_STEP_ID': '0',
  'SLURM_STEP_NUM_TASKS': '2',
}
_OPEN_MPI = {
  'OMPI_COMM_WORLD_LOCAL_RANK': '1',
  'OMPI_COMM_WORLD_RANK': '1',
  'OMPI_COMM_WORLD_SIZE': '2',
  'OMPI_MCA_orte_hnp_uri': '2075525120.0;tcp://192.0.2.2:44743',
}
_HYDRA = {'PMI_RANK': '1', 'PMI_SIZE': '2'}
_GKE = {'TPU_WORKER_HOSTNAMES': 'slice-0-0,slice-0-1', 'TPU_WORKER_ID': '1'}
_GKE_PORTS = {'TPU_PROCESS_ADDRESSES': 'a:8471,b:8471', 'TPU_WORKER_ID': '1'}
_GKE_ALONE = {'TPU_WORKER_HOSTNAMES': 'localhost', 'TPU_WORKER_ID': '0'}
_GKE_SLICES = _GKE_ALONE | {'MEGASCALE_NUM_SLICES': '2'}


def _asked(monkeypatch, environment: dict[str, str], *flags: str):
  prefixes = 'SLURM', 'OMPI', 'PMI', 'TPU', 'MEGASCALE'
  for name in [name for name in os.environ if name.startswith(prefixes)]:
    monkeypatch.delenv(name)
  for name, value in environment.items():
    monkeypatch.setenv(name, value)
  parser = argparse.ArgumentParser()
  add_process_flags(parser)
  return processes_of(parser.parse_args(flags))


@pytest.mark.parametrize(
  'environment',
  [_SRUN, _OPEN_MPI, _HYDRA, _GKE, _GKE_PORTS, _GKE_SLICES],
  ids=['srun', 'open_mpi', 'hydra', 'gke', 'gke_ports', 'gke_slices'],
)
def test_several_processes_are_seen(monkeypatch, environment):
  assert _asked(monkeypatch, environment) == Processes()


@pytest.mark.parametrize(
  'environment',
  [{}, _BATCH_SCRIPT, _SALLOC_SHELL, _GKE_ALONE, {'PMI_SIZE': ''}],
  ids=['none', 'sbatch', 'salloc', 'gke_alone', 'empty'],
)
def test_a_process_alone_asks_nobody(monkeypatch, environment):
  assert _asked(monkeypatch, environment) is None
  # Where nothing says it, the user can.
  assert _asked(monkeypatch, environment, '--distributed') == Processes()


def test_a_launcher_that_jax_cannot_ask_is_one_line(monkeypatch, tmp_path):
  # Two trainings that know nothing of each other would write one directory.
  _asked(monkeypatch, _HYDRA)
  done = subprocess.run(
    [
      sys.executable,
      'train.py',
      '--config=configs/quickstart.py',
      f'--workdir={tmp_path}/run',
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=120,
    check=False,
  )
  assert done.returncode == 2, done.stderr
  (line,) = done.stderr.splitlines()
  assert line.startswith('error: the processes cannot be joined')
  assert 'give --coordinator, --processes and --process' in line
  assert list(tmp_path.iterdir()) == []
