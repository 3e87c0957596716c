"""Multi30k as the parts use it: the whole, or its first lines."""

import gzip
from itertools import islice
from pathlib import Path

from benchmarks.acceleration.place import Place

TEST = 'test_2016_flickr'
_TINY_LINES = {'train': 400, 'val': 16, TEST: 8}


def missing(place: Place) -> str:
  """Return why there is no Multi30k; '' where there is."""
  if place.data is None:
    return 'no --data: give the folder of Multi30k'
  path = place.data / 'train.en.gz'
  return '' if path.is_file() else f'--data has no Multi30k: {path}: no file'


def folder(place: Place) -> Path:
  """Return the folder of the text; of its first lines, for tiny sizes."""
  if not place.tiny:
    return place.data
  short = place.folder / 'first_lines'
  short.mkdir(exist_ok=True)
  for split, lines in _TINY_LINES.items():
    for language in ('en', 'de'):
      name = f'{split}.{language}.gz'
      with gzip.open(place.data / name, 'rb') as whole:
        first = b''.join(islice(whole, lines))
      (short / name).write_bytes(gzip.compress(first, mtime=0))
  return short
