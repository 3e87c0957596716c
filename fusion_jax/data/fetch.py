"""Command that downloads public corpora, and checks what it gets.

    fusion-jax fetch multi30k --output=DIR
    fusion-jax fetch iwslt14 --output=DIR

DIR is then the `data.root` of the config of that name. The WMT corpora need no
command: their configs name TFDS datasets, which TFDS downloads and checks when
they are prepared.
"""

import contextlib
import importlib.resources
import logging
import re
import shutil
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.sax import saxutils

import pooch
import requests

from fusion_jax.config.flags import command_parser, parse_arguments
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import read_errors, write_whole
from fusion_jax.startup import one_line_errors, run_program, start_logging

logger = logging.getLogger(__name__)

_FILE = importlib.resources.files(__package__).joinpath('corpora.toml')
CORPORA = tomllib.loads(_FILE.read_text(encoding='utf-8'))


def fetch(name: str, folder: Path, mirror: str = '') -> None:
  """Download a corpus; files that are there and right are kept."""
  corpus = CORPORA[name]
  base = (mirror or corpus['url']).rstrip('/')
  if urlsplit(base).scheme not in ('http', 'https', 'file'):
    raise InputError(f'--mirror={mirror}: must begin with https, http or file')
  try:
    for file, digest in corpus['files'].items():
      _download(f'{base}/{file}', folder / file, digest)
  except InputError:
    with contextlib.suppress(OSError):
      folder.rmdir()  # If nothing is in it.
    raise
  if name == 'iwslt14':
    _unpack_iwslt14(folder)
  logger.info('%s is in %s; %s', name, folder, corpus['licence'])


def _download(url: str, path: Path, digest: str) -> None:
  logger.info('%s', path)
  pooch.get_logger().setLevel(logging.WARNING)
  copies = _copy if urlsplit(url).scheme == 'file' else None
  try:
    pooch.retrieve(url, digest, path.name, path.parent, downloader=copies)
  except (requests.RequestException, ValueError) as error:
    raise InputError(
      f'{url}: cannot be downloaded, or is not the file of digest {digest}: '
      f'{first_line(error)}; --mirror names another place'
    ) from error


def _copy(url: str, output: str, _: Any) -> None:
  """Do what pooch's downloaders do, of a file of this machine."""
  source = unquote(urlsplit(url).path)
  with read_errors(source):
    shutil.copyfile(source, output)


# Training text of IWSLT-14 stands between lines of tags; development and test
# sets are XML. The split is the customary one: each 23rd training pair is for
# validation, and the development sets and those of 2010 to 2012 together are
# the test. Others filter by length before they split, so their validation
# pairs are not all ours.
_ARCHIVE, _LANGUAGES = 'de-en.tgz', ('de', 'en')
_TESTS = 'TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012'
_VALID_EVERY = 23
_SEGMENT = re.compile(r'<seg id="\d+">\s*(.*?)\s*</seg>')
# Titles and descriptions are text; other lines that begin so are not.
_TITLE = re.compile(r'</?(?:title|description)>')


def _unpack_iwslt14(folder: Path) -> None:
  """Write {train,valid,test}.{de,en} from the archive in a folder."""
  tests = [f'IWSLT14.{name}.de-en.{{language}}.xml' for name in _TESTS.split()]
  with tarfile.open(folder / _ARCHIVE) as archive:
    pairs = _pairs(archive, ['train.tags.de-en.{language}'])
    test = _pairs(archive, tests)
  valid = pairs[_VALID_EVERY - 1 :: _VALID_EVERY]
  del pairs[_VALID_EVERY - 1 :: _VALID_EVERY]
  splits = {'train': pairs, 'valid': valid, 'test': test}
  for split, texts in splits.items():
    for side, language in enumerate(_LANGUAGES):
      text = ''.join(f'{pair[side]}\n' for pair in texts)
      write_whole(folder / f'{split}.{language}', text.encode())


def _pairs(
  archive: tarfile.TarFile, names: Sequence[str]
) -> list[tuple[str, ...]]:
  """Return the pairs of these files that have text on each side."""
  sides = [
    [line for name in names for line in _lines(archive, name, language)]
    for language in _LANGUAGES
  ]
  return [pair for pair in zip(*sides, strict=True) if all(pair)]


def _lines(archive: tarfile.TarFile, name: str, language: str) -> list[str]:
  wanted = f'de-en/{name.format(language=language)}'
  (member,) = (m for m in archive if m.name.removeprefix('./') == wanted)
  file = archive.extractfile(member)
  assert file is not None, wanted
  text = file.read().decode('utf-8', 'replace').removesuffix('\n')
  if wanted.endswith('.xml'):
    return [saxutils.unescape(segment) for segment in _SEGMENT.findall(text)]
  lines = (_TITLE.sub('', line).strip() for line in text.split('\n'))
  return [line for line in lines if not line.startswith('<')]


@one_line_errors
def main(argv: list[str]) -> None:
  parser = command_parser(__doc__, 'fetch')
  add = parser.add_argument
  add('name', choices=CORPORA)
  add('--output', type=Path, required=True, help='the folder to write into')
  add(
    '--mirror',
    default='',
    help='the address of a folder with the same files: https, http or file',
  )
  flags = parse_arguments(argv, parser)
  start_logging()
  fetch(flags.name, flags.output, flags.mirror)


if __name__ == '__main__':
  run_program(main)
