"""Corpora named by the strings of `DataConfig`, read as line pairs."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fusion_jax.config import DataConfig
from fusion_jax.data import embedded, text_files
from fusion_jax.errors import InputError

# Pairs of the embedded validation and test splits.
EMBEDDED_HELD_OUT_PAIRS = 1_000

_SCHEME = re.compile(r'(?P<scheme>\w+):(?P<rest>.*)', re.DOTALL)
_TFDS = re.compile(r'(?P<name>[^\[\]]+):(?P<split>\w+(\[[^\[\]]*\])?)')


def read_pairs(corpus: str, data: DataConfig) -> Iterator[tuple[str, str]]:
  """Yield the line pairs of a corpus, in constant memory."""
  yield from _find(corpus, data).read_pairs()


def count_pairs(corpus: str, data: DataConfig) -> int:
  """Count the pairs that `read_pairs` yields."""
  return _find(corpus, data).count_pairs()


def fingerprint(corpus: str, data: DataConfig) -> str:
  """Return a name of the content of a corpus, the same for equal content."""
  return _find(corpus, data).fingerprint()


class _Corpus(NamedTuple):
  read_pairs: Callable[[], Iterator[tuple[str, str]]]
  count_pairs: Callable[[], int]
  fingerprint: Callable[[], str]


def _find(corpus: str, data: DataConfig) -> _Corpus:
  match = _SCHEME.fullmatch(corpus)
  if match and match['scheme'] == 'tfds':
    return _tfds(match['rest'], data)
  if match and match['scheme'] == 'embedded':
    return _embedded(match['rest'], data)
  if '{lang}' in corpus:
    return _files(corpus, data)
  if match:
    raise InputError(
      f'corpus {corpus!r}: unknown kind {match["scheme"]!r}; give a file '
      "name with {lang} in it, 'tfds:NAME/CONFIG:SPLIT' or "
      "'embedded:SPLIT'"
    )
  raise InputError(
    f'corpus {corpus!r}: the file name needs {{lang}} where the language '
    f"code goes, as in 'train.{{lang}}.gz'"
  )


def check_files(corpus: str, data: DataConfig, field: str) -> None:
  """Refuse a corpus of text files that do not exist."""
  if _SCHEME.fullmatch(corpus) or '{lang}' not in corpus:
    return
  for path in _paths(corpus, data):
    if not path.exists():
      raise InputError(
        f'{path.absolute()}: no such file; config.{field} names it by '
        f'{corpus!r}, and config.data.root is {data.root!r}'
      )


def _paths(pattern: str, data: DataConfig) -> list[Path]:
  return [
    Path(data.root, pattern.replace('{lang}', language))
    for language in (data.source_language, data.target_language)
  ]


def _files(pattern: str, data: DataConfig) -> _Corpus:
  paths = _paths(pattern, data)
  return _Corpus(
    lambda: text_files.read_pairs(*paths),
    lambda: text_files.count_pairs(*paths),
    lambda: 'files ' + text_files.fingerprint(*paths),
  )


def _tfds(rest: str, data: DataConfig) -> _Corpus:
  # TFDS takes a second to import, and only its own corpora need it.
  from fusion_jax.data import tfds_corpora

  match = _TFDS.fullmatch(rest)
  if not match:
    raise InputError(
      f"corpus 'tfds:{rest}': give it as 'tfds:NAME/CONFIG:SPLIT', as in "
      "'tfds:wmt14_translate/de-en:train'"
    )
  languages = (data.source_language, data.target_language)
  arguments = (match['name'], match['split'], languages)
  return _Corpus(
    lambda: tfds_corpora.read_pairs(*arguments),
    lambda: tfds_corpora.count_pairs(*arguments),
    lambda: 'tfds ' + tfds_corpora.fingerprint(*arguments),
  )


def _embedded(split: str, data: DataConfig) -> _Corpus:
  sizes = {
    'train': data.embedded_pairs,
    'valid': EMBEDDED_HELD_OUT_PAIRS,
    'test': EMBEDDED_HELD_OUT_PAIRS,
  }
  if split not in sizes:
    raise InputError(
      f"corpus 'embedded:{split}': no such split; it has {', '.join(sizes)}"
    )
  languages = (data.source_language, data.target_language)
  for language in languages:
    if language not in embedded.LANGUAGES:
      raise InputError(
        f"corpus 'embedded:{split}': no language {language!r}; it has "
        f'{", ".join(embedded.LANGUAGES)}'
      )
  pairs = sizes[split]
  return _Corpus(
    lambda: embedded.generate(*languages, split, pairs),
    lambda: pairs,
    lambda: f'embedded {embedded.VERSION} {split} {pairs} {languages}',
  )
