"""The readers of files that come from outside, and files that they like."""

import bz2
import gzip
import json
import lzma
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fusion_jax.analysis.tags import read_words
from fusion_jax.cli.line_formats import open_json, open_text
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config
from fusion_jax.config.presets import changed
from fusion_jax.config.serialization import to_json
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.data.text_files import count_pairs, read_pairs
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.evaluation.contrastive import read_items
from fusion_jax.runs.directory import (
  locked,
  read_config,
  read_metrics,
  read_report,
)

_TEXT = 'Ein Hund läuft.\nEine Katze\tsitzt\u2028da.\n\n'.encode()
_ITEM = {'source': 'a dog', 'reference': 'ein Hund', 'contrastive': ['x', 'y']}
_ERROR = {'contrastive': 'eine Hund', 'type': 'gender', 'distance': 3}
_GROUPED = {'source': 'a', 'reference': 'ein', 'errors': [_ERROR]}
_CONLLU = b'# text = Hi you\n1\tHi\thi\tINTJ\t_\t_\t0\troot\t_\t_\n\n'
_LOCK = b'{"host": "a", "process": 1, "since": "2026"}\n'
_METRICS = [
  {'kind': 'train', 'step': 100, 'loss': 4.5, 'seconds': 1.25},
  {'kind': 'valid', 'step': 200, 'loss': 4.25, 'bleu': 11.0, 'best': None},
]


class Reader(NamedTuple):
  """What reads a file below the folder that `made` fills; given the folder.

  Without `seeds` it begins with the file as `made` leaves it.
  """

  file: str
  read: Callable[[Path], Any]
  seeds: tuple[bytes, ...] = ()


def made(folder: Path) -> None:
  """Fill a folder with a prepared corpus and with what a run directory has.

  Reports and settings have no digests there, so that what is read after them
  is reached.
  """
  config = _config(folder)
  corpus = prepare(config.data).directory
  shutil.copytree(corpus, folder / 'corpus', dirs_exist_ok=True)
  for name in ('report.json', 'settings.json'):
    path = folder / 'corpus' / name
    values = json.loads(path.read_text())
    for digest in ('sha256', 'files'):
      values.pop(digest, None)
    path.write_text(json.dumps(values))
  shutil.copytree(folder / 'corpus', folder / 'run' / 'corpus')
  (folder / 'run' / 'config.json').write_text(to_json(config))


def _config(folder: Path) -> ExperimentConfig:
  tiny = {
    'data.embedded_pairs': 200,
    'data.tokenizer.vocabulary_size': 250,
    'data.sampling.source_alpha': 0.1,
    'data.prepared': str(folder / 'prepared'),
  }
  return changed(load_config('configs/quickstart.py'), tiny)


def _consume(lines: Iterable[Any]) -> None:
  for _ in lines:
    pass


def _pairs(path: Path) -> None:
  _consume(read_pairs(path, path))
  count_pairs(path, path)


def _lines(path: Path) -> None:
  with open_text(str(path)) as lines:
    _consume(lines)


def _json_lines(path: Path) -> None:
  with open_json(str(path), ('source',)) as lines:
    _consume(lines)


def _words(path: Path) -> None:
  _consume(read_words(path))


def _tokenizer(path: Path) -> None:
  tokenizer = Tokenizer.from_file(path)
  tokenizer.decode(tokenizer.encode('Ein Hund läuft.'))


def _corpus(folder: Path) -> None:
  corpus = PreparedCorpus(folder / 'corpus')
  for name in corpus.report['splits']:
    split = corpus.split(name)
    for index in range(min(2, len(split))):
      _ = split[index]
      split.sample(index, seed=1)
    if name != 'train':
      split.texts()


def _locked(folder: Path) -> None:
  path = folder / 'run' / 'lock'
  content = path.read_bytes()
  with locked(folder / 'run'):
    path.write_bytes(content)
    with locked(folder / 'run'):
      pass


def _in(file: str, read: Callable[[Path], Any], *seeds: bytes) -> Reader:
  return Reader(file, lambda folder: read(folder / file), seeds)


_SHARD = 'parallel_text-valid.array_record-00000'
_PACKED = {'': bytes, '.gz': gzip.compress, '.bz2': bz2.compress}
READERS = {
  f'text{suffix}': _in(f'text{suffix}', _pairs, packed(_TEXT))
  for suffix, packed in (_PACKED | {'.xz': lzma.compress}).items()
} | {
  'lines': _in('lines', _lines, _TEXT),
  'JSON lines': _in(
    'lines.jsonl',
    _json_lines,
    b'{"source": "a", "target": "b", "x": [1, null]}\n{"source": ""}\n',
  ),
  'contrastive': _in(
    'items.json',
    read_items,
    *(json.dumps([item]).encode() for item in (_ITEM, _GROUPED)),
  ),
  'CoNLL-U': _in('words.conllu', _words, _CONLLU),
  'metrics': _in(
    'metrics.jsonl', read_metrics, '\n'.join(map(json.dumps, _METRICS)).encode()
  ),
  'config': Reader('run/config.json', lambda at: read_config(at / 'run')),
  'kept report': Reader(
    'run/corpus/report.json', lambda at: read_report(at / 'run')
  ),
  'lock': Reader('run/lock', _locked, (_LOCK,)),
  'tokenizer': _in('corpus/source.model', _tokenizer),
  'report.json': Reader('corpus/report.json', _corpus),
  'settings.json': Reader('corpus/settings.json', _corpus),
  'valid.lengths.npy': Reader('corpus/valid.lengths.npy', _corpus),
  'valid.rows.npy': Reader('corpus/valid.rows.npy', _corpus),
  'records': Reader(f'corpus/{_SHARD}', _corpus),
}
