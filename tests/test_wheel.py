"""The wheel has all that users need, and works in an empty directory."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from saved_runs import SavedRun

pytestmark = pytest.mark.extended

_ROOT = Path(__file__).parents[1]


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  """Built without a network: its build requirements are installed."""
  folder = tmp_path_factory.mktemp('wheel')
  # Building writes into the source tree.
  listed = [
    'git',
    'ls-files',
    '-z',
    '--cached',
    '--others',
    '--exclude-standard',
  ]
  files = subprocess.check_output(listed, cwd=_ROOT, text=True).split('\0')
  for name in filter(None, files):
    if name.startswith(('fusion_jax/', 'configs/')) or '/' not in name:
      copy = folder / 'source' / name
      copy.parent.mkdir(parents=True, exist_ok=True)
      shutil.copy2(_ROOT / name, copy, follow_symlinks=False)
  options = '--no-deps', '--no-build-isolation', f'--wheel-dir={folder}'
  _run('-m', 'pip', 'wheel', '--quiet', *options, folder / 'source')
  (path,) = folder.glob('*.whl')
  return path


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
  """The environment of a Python that finds the unpacked wheel first."""
  folder = tmp_path_factory.mktemp('installed')
  zipfile.ZipFile(wheel).extractall(folder)
  return os.environ | {'PYTHONPATH': str(folder)}


def _run(*arguments, **options) -> str:
  done = subprocess.run(
    [sys.executable, *map(str, arguments)],
    capture_output=True,
    text=True,
    check=False,
    **options,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout


def test_it_has_every_config_and_the_command(wheel):
  with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
    (points,) = (n for n in names if n.endswith('entry_points.txt'))
    assert b'fusion-jax = fusion_jax.__main__:command' in archive.read(points)
  for path in (_ROOT / 'configs').glob('*.py'):
    assert f'fusion_jax/configs/{path.name}' in names
  for path in (_ROOT / 'fusion_jax').rglob('*'):
    if path.is_file() and '__pycache__' not in path.parts:
      assert path.relative_to(_ROOT).as_posix() in names
  assert not any(name.startswith(('tests/', 'benchmarks/')) for name in names)


def test_python_works_in_an_empty_directory(installed, tmp_path):
  run = SavedRun(tmp_path / 'run')
  run.save({1: 0.5})
  empty = tmp_path / 'empty'
  empty.mkdir()
  code = f"""
import fusion_jax
model = fusion_jax.load({str(run.workdir)!r})
print(len(model.translate(['the cat', 'a dog'], beam_size=2)))
print(fusion_jax.__file__)
"""
  count, place = _run('-c', code, cwd=empty, env=installed).splitlines()
  assert count == '2'
  assert place.startswith(installed['PYTHONPATH'])


def test_the_command_finds_a_config_by_name(installed, tmp_path):
  flags = 'sizes', '--config=multi30k:en-fr'
  out = _run('-m', 'fusion_jax', *flags, cwd=tmp_path, env=installed)
  assert out.splitlines()[-1].endswith(' all')
