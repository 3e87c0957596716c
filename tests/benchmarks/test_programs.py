"""Every program of the benchmarks starts."""

import importlib

import pytest

from benchmarks.serving import ROOT

# Readers are fuzzed by a package that the tests do not need.
PROGRAMS = [
  path.stem
  for path in sorted(ROOT.glob('benchmarks/*.py'))
  if "__name__ == '__main__'" in path.read_text()
  and path.stem != 'fuzz_readers'
]


@pytest.mark.parametrize('name', PROGRAMS)
def test_a_program_tells_what_it_does(name, capsys):
  program = importlib.import_module(f'benchmarks.{name}')
  try:
    code = program.main(['--help'])
  except SystemExit as end:
    code = end.code
  assert not code
  assert 'usage: ' in capsys.readouterr().out
