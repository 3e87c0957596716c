"""The command `fusion-jax` and the names that the package gives."""

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fusion_jax
from fusion_jax.__main__ import COMMANDS, command, main

_ROOT = Path(__file__).parents[1]


def test_all_commands_are_listed_with_what_they_do(capsys):
  assert main(['--help']) == 0
  out = capsys.readouterr().out
  for name, (_, text) in COMMANDS.items():
    assert f'  {name} ' in out
    assert text in out


@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_has_help(name, capsys):
  with pytest.raises(SystemExit) as end:
    main([name, '--help'])
  assert end.value.code == 0
  assert capsys.readouterr().out.startswith(f'usage: fusion-jax {name} ')


def test_the_version(capsys):
  assert main(['--version']) == 0
  assert capsys.readouterr().out == f'fusion_jax {fusion_jax.__version__}\n'


def test_a_misspelt_command_is_one_line(capsys):
  assert main(['trian']) == 2
  err = capsys.readouterr().err
  assert err.startswith("error: fusion-jax: the command must be 'train', ")
  assert err.endswith("got 'trian'; did you mean 'train'?\n")


def test_a_failing_command_keeps_its_exit_code(tmp_path, capsys):
  assert main(['decode', f'--workdir={tmp_path}']) == 2
  assert 'not a run directory' in capsys.readouterr().err


@pytest.mark.parametrize('name', ['train', 'decode'])
def test_the_programs_at_the_top_are_the_same_code(name, monkeypatch):
  program = importlib.import_module(name)
  assert program.command is command
  run = []
  monkeypatch.setattr('fusion_jax.startup.run_program', run.append)
  monkeypatch.setattr('signal.signal', lambda *_: None)
  monkeypatch.setattr('fusion_jax.__main__.main', lambda argv: argv)
  program.command(name)
  assert run[0](['--help']) == [name, '--help']


_OUTPUTS = {
  'decode': ('--workdir={run}', '--output={run}/source.model'),
  'report': ('--workdir={run}', '--output={run}/config.json'),
  'analyse': ('curves', '--workdir={run}', '--output={run}/corpus'),
  'average': ('--workdir={run}', '--average=2', '--output={run}/checkpoints/9'),
  'export': (
    '--workdir={run}',
    '--format=ctranslate2',
    '--output={run}/checkpoints/9',
  ),
  'contrastive': ('--workdir={run}', '--input=x', '--output={run}/lock'),
}


@pytest.mark.parametrize('command', _OUTPUTS)
def test_no_command_writes_over_a_run(tmp_path, capsys, command):
  for name in ('config.json', 'source.model'):
    (tmp_path / name).write_text('{}')
  flags = [flag.format(run=tmp_path) for flag in _OUTPUTS[command]]
  before = sorted(tmp_path.iterdir())
  assert main([command, *flags]) == 2
  assert f'belongs to the run {tmp_path}; give' in capsys.readouterr().err
  assert sorted(tmp_path.iterdir()) == before
  assert (tmp_path / 'config.json').read_text() == '{}'


def test_average_reads_its_flags_before_it_imports_jax():
  code = (
    'import sys\n'
    'from fusion_jax.tools.average_checkpoints import main\n'
    "assert main(['--workdir=a', '--output=b', '--average=1']) == 2\n"
    "sys.exit('jax' in sys.modules)"
  )
  assert subprocess.run([sys.executable, '-c', code]).returncode == 0


def test_the_installed_command_is_this_one():
  project = tomllib.loads((_ROOT / 'pyproject.toml').read_text())['project']
  module, _, name = project['scripts']['fusion-jax'].partition(':')
  assert callable(getattr(importlib.import_module(module), name))


def test_public_names_exist_and_are_documented():
  for name in fusion_jax.__all__:
    assert getattr(fusion_jax, name).__doc__, name
  assert set(fusion_jax.__all__) <= set(dir(fusion_jax))
  with pytest.raises(AttributeError, match="no attribute 'loda'"):
    _ = fusion_jax.loda


def test_importing_prints_nothing_and_waits_for_jax():
  code = 'import sys, fusion_jax; assert "jax" not in sys.modules'
  done = subprocess.run(
    [sys.executable, '-c', code],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == done.stderr == ''
