"""Bad inputs, made from the options and the files that there are."""

import argparse
import dataclasses
import gzip
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


def _flipped(content: bytes) -> bytes:
  half = len(content) // 2
  return (
    content[:half]
    + bytes(b ^ 16 for b in content[half:][:1])
    + (content[half + 1 :])
  )


def _rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
  return lambda path: path.write_bytes(change(path.read_bytes()))


def _in_its_place(make: Callable[[Path], None]) -> Callable[[Path], None]:
  def replaced(path: Path) -> None:
    path.unlink()
    make(path)

  return replaced


# What can happen to a file.
DAMAGE: dict[str, Callable[[Path], None]] = {
  'deleted': Path.unlink,
  'a folder': _in_its_place(Path.mkdir),
  'a pipe': _in_its_place(os.mkfifo),
  **{
    f'a link to {target}': _in_its_place(
      lambda path, target=target: path.symlink_to(target or path.name)
    )
    for target in ('nowhere', '', '/dev/full', '/proc/self/mem')
  },
  'a bit flipped': _rewritten(_flipped),
  'halved': _rewritten(lambda content: content[: len(content) // 2]),
  'doubled': _rewritten(lambda content: 2 * content),
  'packed and cut': _rewritten(lambda content: gzip.compress(content)[:-4]),
  'UTF-16': _rewritten(lambda x: x.decode('latin-1').encode('utf-16')),
  **{
    content[:40].decode('latin-1'): _rewritten(lambda _, new=content: new)
    for content in (
      b'',
      bytes(4_096),
      b'a' * 100_000,
      b'{"format": NaN, "step": Infinity, "name": null}',
      bytes(range(256)) * 9,
      b'[1, 2, 3]',
      b'{}',
      b'[' * 100_000,
      b'{"name": "\\ud800", "format": 1}',
      b'{"format": 1%s, "step": -1}' % (b'0' * 30),
    )
  },
}
