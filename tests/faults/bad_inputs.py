"""Bad inputs, made from the options and the files that there are."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

LONG = 'n' * 300
NUMBERS = ('x', '', 'nan', 'inf', '-inf', '-1', '9' * 400, '1e999', '0x10')


@dataclasses.dataclass(frozen=True)
class Case:
  """A command that may go wrong.

  Attributes:
    name: Of the case, as pytest shows it.
    program: That is run.
    argv: Its arguments.
    refused: Whether it must be refused; otherwise it may go well too.
    told: What the line must name.
  """

  name: str
  program: str
  argv: tuple[str, ...]
  refused: bool = False
  told: str = ''


def option_cases(
  program: str, argv: Sequence[str], options: Sequence[argparse.Action]
) -> Iterator[Case]:
  """Every option with values that it cannot have, and one that is not there."""
  yield Case(
    f'{program} --no_such_flag',
    program,
    (*argv, '--no_such_flag=1'),
    refused=True,
    told='--no_such_flag',
  )
  for option in options:
    flag = option.option_strings[-1]
    for value, refused in _values(option):
      shown = value if len(value) < 30 else f'{value[:9]}...'
      yield Case(
        f'{program} {flag}={shown!r}',
        program,
        (*argv, f'{flag}={value}'),
        refused=refused,
        told=flag.lstrip('-') if refused else '',
      )


def _values(option: argparse.Action) -> Iterator[tuple[str, bool]]:
  """Values, and whether they must be refused."""
  if option.nargs == 0:
    yield 'yes', True
  elif option.choices:
    yield 'nonsense', True
    yield '', True
  elif option.type not in (None, str, Path):
    for value in NUMBERS:
      yield value, value in ('x', '')
  else:
    for value in ('absent', 'folder', 'binary', 'empty', LONG, 'a\nb', ''):
      yield value, False


def _emptied(path: Path) -> None:
  path.write_bytes(b'')


def _halved(path: Path) -> None:
  path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flipped(path: Path) -> None:
  content = bytearray(path.read_bytes())
  if content:
    content[len(content) // 2] ^= 16
  path.write_bytes(content)


def _replaced(content: bytes) -> Callable[[Path], None]:
  return lambda path: path.write_bytes(content)


def _made_a_folder(path: Path) -> None:
  path.unlink()
  path.mkdir()


def _dangling(path: Path) -> None:
  path.unlink()
  path.symlink_to('nowhere')


# What can happen to a file.
DAMAGE: dict[str, Callable[[Path], None]] = {
  'deleted': Path.unlink,
  'emptied': _emptied,
  'halved': _halved,
  'a bit flipped': _flipped,
  'a folder': _made_a_folder,
  'a dangling link': _dangling,
  'binary': _replaced(bytes(range(256)) * 9),
  'a list': _replaced(b'[1, 2, 3]'),
  'a string': _replaced(b'"text"'),
  'empty object': _replaced(b'{}'),
  'deep': _replaced(b'[' * 100_000),
  'lone surrogate': _replaced(b'{"name": "\\ud800", "format": 1}'),
  'numbers': _replaced(json.dumps({'format': 10**30, 'step': -1}).encode()),
}
