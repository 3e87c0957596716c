"""Systems to compare: files of translations, or run directories."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from fusion_jax.cli.text_io import open_input, read_lines, split_paths
from fusion_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class TextFile:
  """The lines of a file.

  Attributes:
    path: Path of the file.
    lines: Lines without trailing white space, as sacreBLEU reads them.
    run: Run directory and step that made the lines; '' if unknown.
  """

  path: str
  lines: tuple[str, ...]
  run: str = ''


@dataclasses.dataclass(frozen=True)
class NamedSystem:
  """A system as named on the command line.

  Attributes:
    name: Name of the system.
    paths: One or more files or run directories, one per seed.
  """

  name: str
  paths: tuple[str, ...]

  @property
  def runs(self) -> list[str]:
    """The paths that are run directories."""
    return [path for path in self.paths if Path(path).is_dir()]


@dataclasses.dataclass(frozen=True)
class System:
  """A system with its translations.

  Attributes:
    name: Name of the system.
    outputs: Files of translations, one per seed.
  """

  name: str
  outputs: tuple[TextFile, ...]


def named_systems(flags: Sequence[str]) -> list[NamedSystem]:
  """Read `NAME=PATH[,PATH]` of each --system."""
  if not flags:
    raise InputError('no system to compare: give --system NAME=FILE[,FILE]')
  systems: dict[str, NamedSystem] = {}
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
    systems[name] = NamedSystem(name, paths)
  return list(systems.values())


def baseline_first(
  systems: Sequence[NamedSystem], baseline: str
) -> list[NamedSystem]:
  """Put the baseline first and keep the order of the other systems."""
  names = [system.name for system in systems]
  if baseline and baseline not in names:
    raise InputError(
      f'--baseline={baseline}: no such system; there are {", ".join(names)}'
    )
  return sorted(systems, key=lambda each: each.name != (baseline or names[0]))


def read_file(path: str) -> TextFile:
  """Read a text."""
  with open_input(path) as file:
    lines = tuple(line.rstrip() for line in read_lines(file, path))
  if not lines:
    raise InputError(f'{path}: the file is empty')
  return TextFile(path, lines)


def check_lines(source: TextFile, others: Sequence[TextFile]) -> None:
  """Refuse files that do not match the source line by line."""
  for each in others:
    if len(each.lines) != len(source.lines):
      raise InputError(
        f'{each.path} has {len(each.lines):,} lines but {source.path} has '
        f'{len(source.lines):,}: line i of one must translate line i of the '
        'other'
      )
