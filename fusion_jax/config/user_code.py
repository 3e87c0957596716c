"""Python files of the user: configs, and schemes that they register.

A run directory never names code to run. The user does, by a flag or by
installing a package that declares an entry point.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

from fusion_jax.errors import InputError, first_line

_ENTRY_POINTS = 'fusion_jax.schemes'


def run_user_dir(path: str) -> None:
  """Run the code of `--user_dir`, which registers schemes."""
  flag = '--user_dir'
  file = os.path.join(path, '__init__.py') if os.path.isdir(path) else path
  if not os.path.isfile(file):
    raise InputError(f'{flag}: {file}: no such file')
  with errors_by_line(file, flag):
    run_file(file, flag)


def run_installed_schemes() -> None:
  """Run the modules that installed packages declare as entry points."""
  for point in importlib.metadata.entry_points(group=_ENTRY_POINTS):
    try:
      point.load()
    except Exception as error:
      raise InputError(
        f'the entry point {point.name} of {_ENTRY_POINTS}, {point.value}: '
        f'{type(error).__name__}: {first_line(error)}'
      ) from error


def check_file(path: str, flag: str) -> None:
  """Refuse a path that is no file."""
  if os.path.isdir(path):
    raise InputError(f'{flag}: {path}: is a folder, not a Python file')
  if not os.path.isfile(path):
    raise InputError(f'{flag}: {path}: no such file')


def run_file(path: str, flag: str) -> types.ModuleType:
  """Run a Python file and return its module."""
  file, folder = Path(path), None
  if file.name == '__init__.py':
    file = file.absolute().parent
    folder = [str(file)]
  # Dataclasses look the module up by its name, which must therefore be unique.
  name = f'user_file_{file.stem}'
  spec = importlib.util.spec_from_file_location(
    name, path, submodule_search_locations=folder
  )
  if spec is None or spec.loader is None:
    raise InputError(f'{flag}: {path}: not a Python file')
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module


@contextlib.contextmanager
def errors_by_line(path: str, flag: str) -> Iterator[None]:
  """Report an error in a user's Python file with its line."""
  try:
    yield
  except SyntaxError as error:
    place = f'{error.filename or path}, line {error.lineno or 1}'
    raise InputError(f'{flag}: {place}: {error.msg}') from None
  except (Exception, SystemExit) as error:
    reason = first_line(error)
    if reason.startswith(flag):
      raise
    if not isinstance(error, InputError):
      reason = f'{type(error).__name__}: {reason}'
    place = f'{path}{_line_of(error, os.path.abspath(path))}'
    raise InputError(f'{flag}: {place}: {reason}') from error


def _line_of(error: BaseException, path: str) -> str:
  """Return the line of a file that raised, as ', line 3'; '' if none did."""
  passed = traceback.walk_tb(error.__traceback__)
  lines = [line for at, line in passed if at.f_code.co_filename == path]
  return f', line {lines[-1]}' if lines else ''
