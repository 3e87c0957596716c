"""launch/slurm.sh: its processes train as one, stop, and queue again.

SLURM's programs are stand-ins here. `srun` starts the tasks with the variables
that SLURM 22.05 sets in a step of two tasks on one node.
"""

import ast
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import ROOT, calls, stand_in, with_settings
from tiny_run import TINY

pytestmark = pytest.mark.extended

_TASKS = 2
_FLAGS = TINY | {
  'training.steps': 100_000,
  'training.validate_every': 100_000,
  'training.save_every': 100_000,
}
_SRUN = """
arguments = sys.argv[1:]
while arguments[0].startswith('--'):
  del arguments[0]
step = {
  'SLURM_STEP_ID': '0',
  'SLURM_STEP_NODELIST': 'localhost',
  'SLURM_STEP_NUM_NODES': '1',
  'SLURM_STEP_NUM_TASKS': '2',
  'SLURM_STEP_TASKS_PER_NODE': '2',
  'SLURM_NTASKS': '2',
}
tasks = [
  subprocess.Popen(
    arguments,
    env=os.environ | step | {'SLURM_PROCID': n, 'SLURM_LOCALID': n},
  )
  for n in '01'
]
with open(sys.argv[0] + '.tasks', 'w') as file:
  print([task.pid for task in tasks], file=file)
sys.exit(max(task.wait() for task in tasks))
""".splitlines()


class _Cluster:
  """The script with settings of its own, and SLURM's programs beside it.

  Args:
    folder: where all that is written.
    srun: the lines of the stand-in for srun.
    end: the job's time limit, as squeue tells it.
  """

  def __init__(self, folder: Path, srun: list[str], end: str):
    self._folder = folder
    stand_in(folder, 'srun', srun)
    stand_in(folder, 'squeue', [f'print({end!r})'])
    stand_in(folder, 'scontrol', [])
    flags = _FLAGS | {'data.prepared': folder / 'prepared'}
    values = [f'--config.{name}={value}' for name, value in flags.items()]
    settings = [
      'late=200',
      f'python={sys.executable}',
      'train=(',
      '--config=configs/quickstart.py',
      f'--workdir={folder}/run',
      *values,
      ')',
    ]
    text = '\n'.join([*settings, ''])
    self._script = with_settings('slurm.sh', text, folder)

  def start(self, *flags: str) -> subprocess.Popen:
    """Starts the script as a batch job of two tasks."""
    environment = os.environ | {
      'PATH': f'{self._folder}:{os.environ["PATH"]}',
      'SLURM_JOB_ID': str(_job_with_a_free_port()),
      'SLURM_CPUS_PER_TASK': '3',
      'SLURM_NTASKS': str(_TASKS),
      # Of the batch script itself, which is no task of a step.
      'SLURM_PROCID': '0',
      'SLURM_LOCALID': '0',
      'JAX_PLATFORMS': 'cpu',
      # The step takes longer to compile than to run.
      'XLA_FLAGS': '--xla_backend_optimization_level=0',
    }
    return subprocess.Popen(
      [self._script, *flags],
      cwd=ROOT,
      env=environment,
      text=True,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
    )

  def run(self, *flags: str) -> tuple[int, str]:
    """Runs the script to its end; exit code and log."""
    process = self.start(*flags)
    log, _ = process.communicate(timeout=300)
    return process.returncode, log

  def calls(self, name: str) -> list[list[str]]:
    """The arguments of each call of one of SLURM's programs."""
    return calls(self._folder / name)

  def steps(self) -> list[int]:
    """The steps that the run has logged."""
    path = self._folder / 'run' / 'metrics.jsonl'
    # The last line may be half written.
    lines = path.read_text().split('\n')[:-1] if path.exists() else []
    return [json.loads(line)['step'] for line in lines]

  def cancel(self) -> None:
    """What `scancel --signal=TERM` does."""
    for task in ast.literal_eval((self._folder / 'srun.tasks').read_text()):
      os.kill(task, signal.SIGTERM)


def _job_with_a_free_port() -> int:
  """A job's number from which JAX makes a port that is free.

  The port is job % 2**12 + 61440 in jax/_src/clusters/slurm_cluster.py.
  """
  for job in range(os.getpid() % 2**12, 2**13):
    with socket.socket() as tried:
      try:
        tried.bind(('', job % 2**12 + 61440))
      except OSError:
        continue
    return job
  raise AssertionError('no free port')


def _time_after(seconds: int) -> str:
  return time.strftime(
    '%Y-%m-%dT%H:%M:%S', time.localtime(time.time() + seconds)
  )


def test_two_tasks_train_as_one_stop_at_one_step_and_resume(tmp_path):
  # squeue says that the job has less than the 180 seconds at most that are
  # left after --signal=TERM@120.
  cluster = _Cluster(tmp_path, _SRUN, _time_after(170))
  job = cluster.start()
  deadline = time.monotonic() + 300
  while len(cluster.steps()) < 20 and job.poll() is None:
    assert time.monotonic() < deadline
    time.sleep(0.05)
  cluster.cancel()
  log, _ = job.communicate(timeout=300)
  assert job.returncode == 75, log
  # Only process 0 logs, and both devices are in the mesh.
  assert len(re.findall('2 cpu device.s.: data 2 x', log)) == 1, log
  (stopped,) = re.findall(r'stopped after step (\d+)', log)
  assert int(stopped) >= 20
  assert cluster.steps() == list(range(1, int(stopped) + 1))
  (call,) = cluster.calls('scontrol')
  assert call[0] == 'requeue'
  # The same command goes on; here it finds that all steps are done.
  code, log = cluster.run(f'--config.training.steps={stopped}')
  assert code == 0, log
  assert f'resuming from step {stopped}' in log
  assert f'finished after step {stopped}' in log


def test_every_task_has_its_cores_and_falls_with_the_others(tmp_path):
  cluster = _Cluster(tmp_path, [], 'NONE')
  code, log = cluster.run('--config.training.seed=5')
  assert code == 0, log
  (call,) = cluster.calls('srun')
  # --cpus-per-task of sbatch is not handed on by itself since 22.05.
  assert call[:2] == ['--cpus-per-task=3', '--kill-on-bad-exit=1']
  command = call[call.index(sys.executable) :]
  assert command[1] == 'train.py'
  assert command[-1] == '--config.training.seed=5'


@pytest.mark.parametrize('code', [2, 143])
def test_a_run_that_fails_ends_the_job_with_its_code(tmp_path, code):
  cluster = _Cluster(tmp_path, [f'sys.exit({code})'], _time_after(30))
  found, log = cluster.run()
  assert found == code, log
  assert cluster.calls('scontrol') == []


@pytest.mark.parametrize(
  ('training', 'left', 'again'),
  [
    # Told to stop by a user, long before the limit, or there is none.
    (75, 3600, False),
    (75, None, False),
    # --signal=TERM@120 comes 120 to 180 seconds before the limit.
    (75, 180, True),
    (75, 30, True),
    # Finished, however late.
    (0, 30, False),
  ],
)
def test_only_a_job_at_its_limit_queues_again(tmp_path, training, left, again):
  end = 'NONE' if left is None else _time_after(left)
  cluster = _Cluster(tmp_path, [f'sys.exit({training})'], end)
  code, log = cluster.run()
  assert code == training, log
  assert len(cluster.calls('scontrol')) == again
