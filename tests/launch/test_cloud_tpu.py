"""launch/cloud-tpu.sh with a stand-in for gcloud, whose workers are folders."""

import ast
import os
import re
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from launching import calls, program, stand_in, with_settings

_SETTINGS = """
name=mine
place=(--project=p --zone=z)
accelerator=v5litepod-16
runtime=v2-alpha-tpuv5-lite
request=(--spot)
share=10.0.0.2:/runs
train=(
  --config=configs/quickstart.py
  --workdir='/mnt/runs/my run'
)
"""
# Two workers; --command runs in the home directory of each.
_GCLOUD = """
options = dict(a.split('=', 1) for a in sys.argv[1:] if '=' in a)
worker = options.get('--worker')
homes = [sys.argv[0] + n for n in ('01' if worker == 'all' else worker or '')]
for home in homes:
  os.makedirs(home, exist_ok=True)
  if '--command' in options:
    subprocess.run(['bash', '-c', options['--command']], cwd=home, check=True)
""".splitlines()


class _Project:
  """A copy of the script, the stand-in, and what came of calls."""

  def __init__(self, folder: Path, gcloud: list[str]):
    self._folder = folder
    with_settings('cloud-tpu.sh', _SETTINGS, folder / 'repository' / 'launch')
    stand_in(folder, 'gcloud', gcloud)

  def run(self, *words: str) -> subprocess.CompletedProcess:
    """Runs the script."""
    environment = os.environ | {'PATH': f'{self._folder}:{os.environ["PATH"]}'}
    return subprocess.run(
      [self._folder / 'repository' / 'launch' / 'cloud-tpu.sh', *words],
      env=environment,
      capture_output=True,
      text=True,
      timeout=60,
      check=False,
    )

  def worker(self, index: int) -> Path:
    """The home directory of a worker."""
    return self._folder / f'gcloud{index}'

  def calls(self) -> list[list[str]]:
    """The arguments of each call of gcloud."""
    return calls(self._folder / 'gcloud')


def _running(pid: int) -> bool:
  try:
    stat = Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return False
  # Nobody may wait for the children of a shell that has ended: a zombie, Z.
  return stat.rpartition(')')[2].split()[0] != 'Z'


def _wait_for(path: Path) -> str:
  deadline = time.monotonic() + 20
  while not (path.exists() and path.read_text().endswith('\n')):
    assert time.monotonic() < deadline, path
    time.sleep(0.01)
  return path.read_text()


@pytest.mark.parametrize(
  ('word', 'call'),
  [
    (
      'create',
      'queued-resources create mine --node-id=mine '
      '--accelerator-type=v5litepod-16 --runtime-version=v2-alpha-tpuv5-lite '
      '--spot',
    ),
    ('state', 'queued-resources describe mine --format=value(state.state)'),
    ('delete', 'queued-resources delete mine --force'),
  ],
)
def test_the_slice_is_asked_for_and_given_back(tmp_path, word, call):
  project = _Project(tmp_path, [])
  done = project.run(word)
  assert done.returncode == 0, done.stderr
  expected = ['compute', 'tpus', *call.split(), '--project=p', '--zone=z']
  assert project.calls() == [expected]


def test_a_run_starts_on_all_workers_and_stops_by_the_first(tmp_path):
  project = _Project(tmp_path, _GCLOUD)
  for index in (0, 1):
    # Training: writes down its flags, and ends by SIGTERM.
    lines = ['signal.pause()']
    stand_in(project.worker(index) / 'fusion_jax/.venv/bin', 'python', lines)
  started = project.run('start')
  assert started.returncode == 0, started.stderr
  for index in (0, 1):
    folder = project.worker(index) / 'fusion_jax'
    (flags,) = _wait_for(folder / '.venv/bin/python.calls').splitlines()
    assert ast.literal_eval(flags) == [
      'train.py',
      '--distributed',
      '--config=configs/quickstart.py',
      '--workdir=/mnt/runs/my run',
    ]
  pids = [
    int(_wait_for(project.worker(index) / 'fusion_jax' / 'train.pid'))
    for index in (0, 1)
  ]
  again = project.run('start')
  assert again.returncode != 0
  assert 'error: the run is there already' in again.stderr
  stopped = project.run('stop')
  assert stopped.returncode == 0, stopped.stderr
  # JAX hands a stop of one process on to the others; here they are stand-ins.
  os.kill(pids[1], signal.SIGTERM)
  deadline = time.monotonic() + 20
  while any(map(_running, pids)):
    assert time.monotonic() < deadline
    time.sleep(0.01)


def test_setup_sends_this_commit_to_all_workers(tmp_path):
  keep = 'subprocess.run(["cp", sys.argv[5], sys.argv[0] + ".tar"])'
  project = _Project(tmp_path, ['if "scp" in sys.argv:', f'  {keep}'])
  repository = tmp_path / 'repository'
  program(repository / 'train.py', 'print()\n')
  git = ['git', '-C', repository, '-c', 'user.name=a', '-c', 'user.email=a@b']
  for words in (['init', '-q'], ['add', 'train.py'], ['commit', '-qm', 'One']):
    subprocess.run([*git, *words], check=True)
  done = project.run('setup')
  assert done.returncode == 0, done.stderr
  copied, run = project.calls()
  assert copied[:4] == ['compute', 'tpus', 'tpu-vm', 'scp']
  assert copied[5:7] == ['mine:fusion_jax.tar', '--worker=all']
  assert not Path(copied[4]).exists()
  with tarfile.open(tmp_path / 'gcloud.tar') as archive:
    assert archive.getnames() == ['train.py']
  (command,) = [word for word in run if word.startswith('--command=')]
  command = command.removeprefix('--command=')
  subprocess.run(['bash', '-n', '-c', command], check=True)
  assert '--worker=all' in run
  assert 'requirements.txt' in command
  assert "echo '10.0.0.2:/runs /mnt/runs nfs" in command
  assert done.stderr == ''
  (repository / 'train.py').write_text('print(1)\n')
  assert project.run('setup').stderr.startswith('warning: uncommitted')


def test_another_word_is_one_line(tmp_path):
  project = _Project(tmp_path, [])
  for words in ([], ['strat']):
    done = project.run(*words)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert re.match(r'error: .*create\|.*\|delete, got', line)
  assert project.calls() == []
