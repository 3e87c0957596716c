"""Command that downloads public corpora, and checks what it gets.

    fusion-jax fetch multi30k --output=DIR
    fusion-jax fetch iwslt14 --output=DIR

DIR is then the `data.root` of the config of that name. The WMT corpora need no
command: their configs name TFDS datasets, which TFDS downloads and checks when
they are prepared.
"""

import argparse
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pooch
import requests

from fusion_jax.config.flags import parse_arguments
from fusion_jax.data.iwslt14 import unpack
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import read_errors, write_errors
from fusion_jax.startup import one_line_errors, run_program, start_logging

logger = logging.getLogger(__name__)


class Corpus(NamedTuple):
  """Files of a corpus on the network.

  Attributes:
    url: Address of the folder that has the files.
    files: Digest of each file, as 'sha256:...' or 'md5:...'.
    licence: Licence or terms of use.
    unpack: Function from the folder of the files to the corpus in it; None:
      the files are the corpus.
  """

  url: str
  files: Mapping[str, str]
  licence: str
  unpack: Callable[[Path], None] | None = None


CORPORA = {
  'multi30k': Corpus(
    'https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw',
    {
      f'{name}.gz': f'sha256:{digest}'
      for name, digest in {
        'test_2016_flickr.de': (
          '9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8'
        ),
        'test_2016_flickr.en': (
          '611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9'
        ),
        'test_2016_flickr.fr': (
          '6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90'
        ),
        'test_2017_flickr.de': (
          'a2c89666db00c495cd8513b9d708d5a3acc205d7de312ef2bf5fb7ebc1540aee'
        ),
        'test_2017_flickr.en': (
          '76a444ee25172e72695cddb13ae4a3bda59430617be88e0bb46b60504f054074'
        ),
        'test_2017_flickr.fr': (
          '3ba671ceb2299f3304ffafefea7a833d08632fbaf0ba18546f8a2ec2391af496'
        ),
        'train.de': (
          '726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6'
        ),
        'train.en': (
          'd79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f'
        ),
        'train.fr': (
          '622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c'
        ),
        'val.de': (
          'f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a'
        ),
        'val.en': (
          '14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28'
        ),
        'val.fr': (
          'ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9'
        ),
      }.items()
    },
    'CC BY-NC-SA 4.0; Elliott et al. (2016)',
  ),
  'iwslt14': Corpus(
    'https://dl.fbaipublicfiles.com/fairseq/data/iwslt14',
    {'de-en.tgz': 'md5:10936dfdf616504ddbd844e91b94ef4a'},
    'CC BY-NC-ND 4.0, TED talks; Cettolo et al. (2014)',
    unpack,
  ),
}


def fetch(name: str, folder: Path, mirror: str = '') -> None:
  """Download a corpus; files that are there and right are kept."""
  corpus = CORPORA[name]
  base = (mirror or corpus.url).rstrip('/')
  if urlsplit(base).scheme not in ('http', 'https', 'file'):
    raise InputError(f'--mirror={mirror}: must begin with https, http or file')
  with _made(folder):
    for file, digest in corpus.files.items():
      _download(f'{base}/{file}', folder / file, digest)
  if corpus.unpack:
    corpus.unpack(folder)
  logger.info('%s is in %s; %s', name, folder, corpus.licence)


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
  """Make a folder, which is removed again if the block leaves it empty."""
  is_new = not folder.exists()
  with write_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
  try:
    yield
  finally:
    if is_new and not any(folder.iterdir()):
      folder.rmdir()


def _download(url: str, path: Path, digest: str) -> None:
  logger.info('%s', path)
  pooch.get_logger().setLevel(logging.WARNING)
  copies = _copy if urlsplit(url).scheme == 'file' else None
  try:
    pooch.retrieve(url, digest, path.name, path.parent, downloader=copies)
  except requests.RequestException as error:
    raise InputError(
      f'{url}: cannot be downloaded: {first_line(error)}; --mirror names '
      'another place'
    ) from error
  except ValueError as error:
    raise InputError(
      f'{url}: is not the file that it should be: its digest is not {digest}; '
      '--mirror names another place'
    ) from error


def _copy(url: str, output: str, _: Any) -> None:
  """Do what pooch's downloaders do, of a file of this machine."""
  source = unquote(urlsplit(url).path)
  with read_errors(source), open(source, 'rb') as file:
    Path(output).write_bytes(file.read())


@one_line_errors
def main(argv: list[str]) -> None:
  """Download a corpus."""
  parser = argparse.ArgumentParser(
    prog='fusion-jax fetch',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('name', choices=CORPORA)
  parser.add_argument(
    '--output', type=Path, required=True, help='the folder to write into'
  )
  parser.add_argument(
    '--mirror',
    default='',
    help='the address of a folder with the same files: https, http or file',
  )
  arguments = parse_arguments(argv, parser)
  start_logging()
  fetch(arguments.name, arguments.output, arguments.mirror)


if __name__ == '__main__':
  run_program(main)
