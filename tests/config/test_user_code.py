"""Code of the user that registers schemes: by a flag, or installed."""

import argparse
import re
import sys

import pytest

from fusion_jax.config import fusion
from fusion_jax.config.flags import parse_arguments
from fusion_jax.config.fusion import SideConfig
from fusion_jax.errors import InputError

_REGISTER = """
from fusion_jax import register
from fusion_jax.fusion.average import Average
from fusion_jax.fusion.scheme import on_both_sides
register(on_both_sides('mine', Average, 'layer aggregation', 'a test'))
"""


@pytest.fixture(autouse=True)
def _own_table(monkeypatch):
  """Registers into a table of its own."""
  schemes = fusion.ROWS['fusion']
  monkeypatch.setattr(schemes, 'data', {**schemes.data})


def _parse(*flags):
  return parse_arguments(flags, argparse.ArgumentParser())


def test_a_file_registers(tmp_path):
  (tmp_path / 'scheme.py').write_text(_REGISTER)
  _parse(f'--user_dir={tmp_path}/scheme.py')
  assert SideConfig(fusion='mine').fusion == 'mine'


def test_the_files_of_a_folder_import_each_other(tmp_path):
  (tmp_path / '__init__.py').write_text('from . import other')
  (tmp_path / 'other.py').write_text(_REGISTER)
  _parse(f'--user_dir={tmp_path}')
  assert SideConfig(fusion='mine').fusion == 'mine'


def _install(folder, content, monkeypatch):
  """Writes a package with an entry point, as pip leaves it."""
  (folder / 'my_package.py').write_text(content)
  info = folder / 'my_package-1.0.dist-info'
  info.mkdir()
  (info / 'METADATA').write_text('Name: my_package\nVersion: 1.0\n')
  points = '[fusion_jax.schemes]\nmine = my_package\n'
  (info / 'entry_points.txt').write_text(points)
  monkeypatch.syspath_prepend(folder)
  monkeypatch.delitem(sys.modules, 'my_package', raising=False)


def test_an_installed_package_needs_no_flag(tmp_path, monkeypatch):
  _install(tmp_path, _REGISTER, monkeypatch)
  _parse()
  assert SideConfig(fusion='mine').fusion == 'mine'


def test_an_installed_package_that_fails_is_named(tmp_path, monkeypatch):
  _install(tmp_path, '1 / 0', monkeypatch)
  message = 'the entry point mine of fusion_jax.schemes, my_package: ZeroDiv'
  with pytest.raises(InputError, match=message):
    _parse()


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (None, 'scheme.py: no such file'),
    ('x = 1\n1 / 0', 'scheme.py, line 2: ZeroDivisionError: division by zero'),
    ('def', 'scheme.py, line 1: invalid syntax'),
    ('import absent', 'scheme.py, line 1: ModuleNotFoundError: No module'),
    (_REGISTER + _REGISTER, "fusion='mine': there is such a scheme already"),
    (_REGISTER.replace('mine', 'dlcl'), "fusion='dlcl': there is such a"),
  ],
)
def test_code_that_fails_is_one_line(tmp_path, content, message):
  path = tmp_path / 'scheme.py'
  if content is not None:
    path.write_text(content)
  with pytest.raises(InputError, match=re.escape(message)) as raised:
    _parse(f'--user_dir={path}')
  assert str(raised.value).startswith('--user_dir: ')
  assert '\n' not in str(raised.value)


def test_a_folder_without_init_is_named(tmp_path):
  with pytest.raises(InputError, match=r'__init__\.py: no such file'):
    _parse(f'--user_dir={tmp_path}')
