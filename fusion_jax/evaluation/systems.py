"""The translations that are compared: files, or what run directories give."""

import contextlib
import dataclasses
import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from fusion_jax.cli.text_io import open_input, read_lines, split_paths
from fusion_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class TextFile:
  """The lines of a file.

  Attributes:
    path: of the file.
    lines: without white space at their ends, as sacreBLEU reads them.
    run: what made them, a run directory and its step; '': not known.
  """

  path: str
  lines: tuple[str, ...]
  run: str = ''


@dataclasses.dataclass(frozen=True)
class Wanted:
  """A system as it was asked for.

  Attributes:
    name: of the system.
    paths: of files or run directories, one or more, one of each seed.
  """

  name: str
  paths: tuple[str, ...]

  @property
  def runs(self) -> list[str]:
    """The run directories of the paths."""
    return [path for path in self.paths if Path(path).is_dir()]


@dataclasses.dataclass(frozen=True)
class System:
  """A system with its translations, one file of each seed."""

  name: str
  outputs: tuple[TextFile, ...]


def wanted(flags: Sequence[str]) -> list[Wanted]:
  """Reads `NAME=PATH[,PATH]` of each --system.

  Args:
    flags: their values.

  Returns:
    The systems in order.

  Raises:
    InputError: none, no name, no path, or a name or path given twice.
  """
  if not flags:
    raise InputError('no system to compare: give --system NAME=FILE[,FILE]')
  systems: dict[str, Wanted] = {}
  for flag in flags:
    name, _, listed = flag.partition('=')
    paths = tuple(split_paths(listed))
    if not (name and all(paths)) or '/' in name:
      raise InputError(
        f'--system {flag}: must be NAME=FILE[,FILE], the name without /'
      )
    if name in systems:
      raise InputError(
        f'--system {flag}: there is a system {name} already; files of other '
        f'seeds go into one flag: {name}=FILE,FILE'
      )
    for path in paths:
      if paths.count(path) > 1:
        raise InputError(f'--system {flag}: {path} is given twice')
    systems[name] = Wanted(name, paths)
  return list(systems.values())


def baseline_first(systems: Sequence[Wanted], baseline: str) -> list[Wanted]:
  """The systems in order, but for the baseline.

  Args:
    systems: at least one.
    baseline: its name; '': the first one.

  Raises:
    InputError: there is no such system.
  """
  names = [system.name for system in systems]
  if baseline and baseline not in names:
    raise InputError(
      f'--baseline={baseline}: no such system; there are {", ".join(names)}'
    )
  return sorted(systems, key=lambda each: each.name != (baseline or names[0]))


def read_file(path: str) -> TextFile:
  """Reads a text.

  Args:
    path: of the file; one that ends in .gz is unpacked.

  Raises:
    InputError: it cannot be read, or has no lines.
  """
  opened = gzip.open if path.endswith('.gz') else contextlib.nullcontext
  with open_input(path) as packed, opened(packed) as file:
    try:
      lines = tuple(line.rstrip() for line in read_lines(file, path))
    except (EOFError, zlib.error) as error:
      raise InputError(f'{path}: not a readable .gz file ({error})') from None
  if not lines:
    raise InputError(f'{path}: the file is empty')
  return TextFile(path, lines)


def check_lines(source: TextFile, others: Sequence[TextFile]) -> None:
  """Refuses files that do not go with the source line for line.

  Args:
    source: of all of them.
    others: references and translations.

  Raises:
    InputError: it names the first file of another number of lines.
  """
  for each in others:
    if len(each.lines) != len(source.lines):
      raise InputError(
        f'{each.path} has {len(each.lines):,} lines but {source.path} has '
        f'{len(source.lines):,}: line i of one must translate line i of the '
        'other'
      )
