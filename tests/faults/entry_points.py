"""All programs of the project, found by what they are, and run in this process.

A program is a module whose `main` has the decorator `one_line_errors`.
"""

import argparse
import ast
import dataclasses
import importlib
import importlib.util
import io
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]
_MOST_SECONDS = 120


def programs() -> dict[str, Callable[[Sequence[str]], int]]:
  """The entry points, by 'train', 'decode' or the name of the module."""
  found = {}
  for path in _modules():
    if _has_main(path):
      name = '.'.join(path.relative_to(ROOT).with_suffix('').parts)
      short = name.removeprefix('fusion_jax.cli.').removesuffix('.__main__')
      found[short] = _main(path, name)
  return found


def _modules() -> list[Path]:
  package = ROOT / 'fusion_jax'
  # The command only calls the others.
  return sorted({*package.rglob('*.py')} - {package / '__main__.py'})


def _has_main(path: Path) -> bool:
  tree = ast.parse(path.read_text())
  return any(
    isinstance(node, ast.FunctionDef)
    and node.name == 'main'
    and 'one_line_errors' in map(ast.unparse, node.decorator_list)
    for node in tree.body
  )


def _main(path: Path, name: str) -> Callable[[Sequence[str]], int]:
  if name.startswith('fusion_jax.'):
    return importlib.import_module(name).main
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.main


class _Seen(BaseException):
  """Carries the parser of a program."""

  def __init__(self, parser: argparse.ArgumentParser):
    super().__init__()
    self.parser = parser


def options_of(
  main: Callable[[Sequence[str]], int], argv: Sequence[str]
) -> list[argparse.Action]:
  """The options that a program has."""

  def parse_known_args(parser, *_):
    raise _Seen(parser)

  seen_in = argparse.ArgumentParser, 'parse_known_args', parse_known_args
  with mock.patch.object(*seen_in):
    try:
      main(list(argv))
    except _Seen as seen:
      return [
        action
        for action in seen.parser._actions
        if action.option_strings and action.dest != 'help'
      ]
  raise AssertionError('the program has no parser')


@dataclasses.dataclass(frozen=True)
class Ended:
  """How a program ended.

  Attributes:
    code: Exit code.
    lines: Lines of stderr that begin with 'error:'.
    seconds: It took.
  """

  code: int
  lines: tuple[str, ...]
  seconds: float


def run(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> Ended:
  """Runs a program; an exception that it does not handle comes through."""
  err = io.StringIO()
  begin = time.monotonic()
  root = logging.getLogger()
  handlers = root.handlers[:]
  try:
    with (
      _end_of_waiting(),
      tempfile.TemporaryFile('w+') as out,
      redirect_stdout(out),
      redirect_stderr(err),
      mock.patch.object(
        sys, 'stdin', io.TextIOWrapper(io.BytesIO(b'the cat\n'))
      ),
    ):
      code = main(list(argv))
  finally:
    root.handlers[:] = handlers
  lines = err.getvalue().splitlines()
  told = tuple(line for line in lines if line.startswith('error:'))
  return Ended(code, told, time.monotonic() - begin)


@contextmanager
def _end_of_waiting() -> Iterator[None]:
  """Lets what waits for ever fail."""

  def fail(*_):
    raise AssertionError(f'it still runs after {_MOST_SECONDS} seconds')

  before = signal.signal(signal.SIGALRM, fail)
  signal.alarm(_MOST_SECONDS)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
