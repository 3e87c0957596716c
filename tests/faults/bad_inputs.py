"""Bad inputs, made from the options and the files that there are."""

import argparse
import dataclasses
import gzip
import json
import os
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
    yield '', '' not in option.choices
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


def _link_to(target: str) -> Callable[[Path], None]:
  def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to(target.format(path.name))

  return linked


def _made_a_pipe(path: Path) -> None:
  path.unlink()
  os.mkfifo(path)


def _packed(path: Path) -> None:
  path.write_bytes(gzip.compress(path.read_bytes())[:-4])


def _recoded(path: Path) -> None:
  path.write_bytes(path.read_bytes().decode('latin-1').encode('utf-16'))


def _doubled(path: Path) -> None:
  path.write_bytes(2 * path.read_bytes())


# What can happen to a file.
DAMAGE: dict[str, Callable[[Path], None]] = {
  'deleted': Path.unlink,
  'emptied': _emptied,
  'halved': _halved,
  'a bit flipped': _flipped,
  'a folder': _made_a_folder,
  'a dangling link': _link_to('nowhere'),
  'a link to itself': _link_to('{}'),
  'a link to a device': _link_to('/dev/full'),
  'a link to what cannot be read': _link_to('/proc/self/mem'),
  'a pipe': _made_a_pipe,
  'packed and cut': _packed,
  'UTF-16': _recoded,
  'doubled': _doubled,
  'zeros': _replaced(bytes(4_096)),
  'one line without an end': _replaced(b'a' * 100_000),
  'not a number': _replaced(b'{"format": NaN, "step": Infinity, "name": null}'),
  'a name twice': _replaced(b'{"format": 1, "format": [], "name": {}}'),
  'binary': _replaced(bytes(range(256)) * 9),
  'a list': _replaced(b'[1, 2, 3]'),
  'a string': _replaced(b'"text"'),
  'empty object': _replaced(b'{}'),
  'deep': _replaced(b'[' * 100_000),
  'lone surrogate': _replaced(b'{"name": "\\ud800", "format": 1}'),
  'numbers': _replaced(json.dumps({'format': 10**30, 'step': -1}).encode()),
}
