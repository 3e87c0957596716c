"""The test sets of a recipe: found in the data, unpacked for decode.py."""

import gzip
import lzma
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fusion_jax.config import DataConfig
from fusion_jax.errors import InputError
from fusion_jax.evaluation.systems import check_lines, read_file
from fusion_jax.files import write_whole

_OPENERS = {'.gz': gzip.open, '.xz': lzma.open}


class Text(NamedTuple):
  """A plain file to translate, and the lines that it should give."""

  source: Path
  references: tuple[str, ...]


def find_tests(
  patterns: Sequence[str], data: DataConfig, root: Path, folder: Path
) -> dict[str, Text]:
  """Finds and unpacks the test sets."""
  found: dict[str, Text] = {}
  for pattern in patterns:
    sources = pattern.format(lang=data.source_language)
    paths = sorted(root.glob(sources))
    if not paths:
      raise InputError(f'--data: {root / sources}: no such file')
    for path in paths:
      name = _name(path.relative_to(root), data.source_language)
      if name not in found:
        found[name] = _unpacked(path, data, folder / name)
  return found


def _name(path: Path, language: str) -> str:
  return path.as_posix().split(f'.{language}')[0].replace('/', '_')


def _unpacked(path: Path, data: DataConfig, stem: Path) -> Text:
  languages = data.source_language, data.target_language
  files: Mapping[str, Path] = {
    language: stem.with_name(f'{stem.name}.{language}')
    for language in languages
  }
  for language, file in files.items():
    packed = path.with_name(
      path.name.replace(f'.{data.source_language}', f'.{language}')
    )
    _unpack(packed, file)
  source, target = (read_file(str(file)) for file in files.values())
  check_lines(source, [target])
  return Text(files[data.source_language], target.lines)


def _unpack(packed: Path, file: Path) -> None:
  opened = _OPENERS.get(packed.suffix, open)
  try:
    with opened(packed, 'rb') as read:
      text = read.read()
  except FileNotFoundError:
    raise InputError(f'--data: {packed}: no such file') from None
  except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
    raise InputError(f'--data: {packed}: not readable: {error}') from None
  file.parent.mkdir(parents=True, exist_ok=True)
  write_whole(file, text)
