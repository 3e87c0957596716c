"""IWSLT-2014 German-English from the archive of the evaluation campaign.

Training text stands between lines of tags; development and test sets are XML.
The split is the customary one: each 23rd training pair is for validation, and
the development sets and those of 2010 to 2012 together are the test. Others
filter by length before they split, so their validation pairs are not all ours.
"""

import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from xml.sax import saxutils

from fusion_jax.errors import InputError, first_line
from fusion_jax.files import write_whole

_ARCHIVE, _PAIR = 'de-en.tgz', 'de-en'
_LANGUAGES = 'de', 'en'
_TRAIN = 'train.tags.{pair}.{language}'
_TESTS = tuple(
  f'IWSLT14.{name}.{{pair}}.{{language}}.xml'
  for name in (
    'TED.dev2010',
    'TEDX.dev2012',
    'TED.tst2010',
    'TED.tst2011',
    'TED.tst2012',
  )
)
_VALID_EVERY = 23
_SEGMENT = re.compile(r'<seg id="\d+">\s*(.*?)\s*</seg>')
# Titles and descriptions are text; other lines that begin so are not.
_TITLE = re.compile(r'</?(?:title|description)>')
_TAG = re.compile(r'\s*<')


def unpack(folder: Path) -> None:
  """Write {train,valid,test}.{de,en} from the archive in a folder."""
  path = folder / _ARCHIVE
  try:
    with tarfile.open(path) as archive:
      pairs = {
        'train': _lines(archive, [_TRAIN], _training_lines),
        'test': _lines(archive, _TESTS, _segments),
      }
  except (tarfile.TarError, EOFError, OSError) as error:
    raise InputError(f'{path}: {first_line(error)}') from error
  numbered = list(enumerate(pairs.pop('train'), start=1))
  pairs['train'] = [pair for n, pair in numbered if n % _VALID_EVERY]
  pairs['valid'] = [pair for n, pair in numbered if not n % _VALID_EVERY]
  for split, texts in pairs.items():
    for side, language in enumerate(_LANGUAGES):
      text = ''.join(f'{pair[side]}\n' for pair in texts)
      write_whole(folder / f'{split}.{language}', text.encode())


def _lines(
  archive: tarfile.TarFile,
  names: Iterable[str],
  read: Callable[[Iterable[str]], Iterator[str]],
) -> list[tuple[str, ...]]:
  """Return the pairs of these files that have text on each side."""
  pairs: list[tuple[str, ...]] = []
  for name in names:
    sides = [list(read(_content(archive, name, each))) for each in _LANGUAGES]
    if len(sides[0]) != len(sides[1]):
      found = ' and '.join(str(len(side)) for side in sides)
      raise InputError(f'{_ARCHIVE}: {name}: {found} lines')
    pairs.extend(zip(*sides, strict=True))
  return [pair for pair in pairs if all(pair)]


def _content(archive: tarfile.TarFile, name: str, language: str) -> list[str]:
  wanted = f'{_PAIR}/{name.format(pair=_PAIR, language=language)}'
  members = [m for m in archive if m.name.removeprefix('./') == wanted]
  file = archive.extractfile(members[0]) if members else None
  if file is None:
    raise InputError(f'{_ARCHIVE}: has no file {wanted}')
  text = file.read().decode('utf-8', 'replace')
  return text.removesuffix('\n').split('\n')


def _training_lines(lines: Iterable[str]) -> Iterator[str]:
  for line in lines:
    text = _TITLE.sub('', line).strip()
    if not _TAG.match(text):
      yield text


def _segments(lines: Iterable[str]) -> Iterator[str]:
  for line in lines:
    if found := _SEGMENT.search(line):
      yield saxutils.unescape(found[1])
