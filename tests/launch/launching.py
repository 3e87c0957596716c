"""The files of launch/, with the settings of a test, and stand-ins to call."""

import ast
import re
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / 'launch'

_SETTINGS = re.compile(r'# ---- Settings.*# ---- End of settings ----\n', re.S)


def with_settings(name: str, settings: str, folder: Path) -> Path:
  """A copy of a shell file whose block of settings is another.

  Args:
    name: of the file in launch/.
    settings: in place of the block.
    folder: where the copy lies.

  Returns:
    The copy.
  """
  text, count = _SETTINGS.subn(lambda match: settings, read(name))
  assert count == 1, f'{name} has {count} blocks of settings'
  return program(folder / name, text)


def read(name: str) -> str:
  """The text of a file in launch/."""
  return (LAUNCH / name).read_text()


def program(path: Path, text: str) -> Path:
  """Writes a file that can be started."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text)
  path.chmod(path.stat().st_mode | stat.S_IXUSR)
  return path


def calls(path: Path) -> list[list[str]]:
  """The arguments of each call of a stand-in."""
  path = path.with_name(f'{path.name}.calls')
  lines = path.read_text().splitlines() if path.exists() else []
  return [ast.literal_eval(line) for line in lines]


def stand_in(folder: Path, name: str, lines: Sequence[str]) -> Path:
  """A Python program for $PATH that first writes down its arguments.

  They come to NAME.calls beside it, one Python list a line.
  """
  text = [
    f'#!{sys.executable} -I',
    'import os, signal, subprocess, sys',
    f'with open({str(folder / name)!r} + ".calls", "a") as calls:',
    '  print(sys.argv[1:], file=calls)',
    *lines,
    '',
  ]
  return program(folder / name, '\n'.join(text))
