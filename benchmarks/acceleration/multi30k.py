"""The whole recipe of configs/multi30k.py, trained and scored, seed by seed."""

import functools
import statistics
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.acceleration import texts
from benchmarks.acceleration.place import Place
from benchmarks.acceleration.work import Part, Piece
from benchmarks.common import table
from benchmarks.comparison.texts import find_tests
from benchmarks.programs import start, train
from benchmarks.tiny_run import TINY
from fusion_jax.config import DataConfig
from fusion_jax.evaluation.systems import read_file
from fusion_jax.metrics import corpus_scores

_CONFIG = 'configs/multi30k.py:en-de'
_TARGET_BLEU = 40.0
_AVERAGE = 5
_TINY = {name: TINY[name] for name in TINY if 'embedded' not in name} | {
  'training.steps': 10,
  'training.save_every': 5,
  'training.validate_every': 10,
}


def part(place: Place) -> Part:
  """A piece for each seed."""
  missing = texts.missing(place)
  pieces = [
    Piece(
      f'multi30k seed {seed}',
      0.8 if place.tiny else 5.0,
      functools.partial(_measure, place, seed),
      missing,
    )
    for seed in ((0,) if place.tiny else (0, 1, 2))
  ]
  if missing:
    pieces = [pieces[0]._replace(name='multi30k')]
  return Part(
    f'{_CONFIG}, trained and scored: BLEU of each seed',
    pieces,
    functools.partial(place.measured, 'multi30k'),
    _table,
  )


def _measure(place: Place, seed: int, seconds: float) -> bool:
  begin = time.monotonic()
  name, data = f'multi30k seed {seed}', texts.folder(place)
  workdir = place.folder / 'multi30k' / f'seed-{seed}'
  fields = {
    'data.root': data,
    'data.prepared': place.folder / 'prepared',
    'training.seed': seed,
  }
  with place.options(name, seconds=seconds) as options:
    train(_CONFIG, workdir, fields | (_TINY if place.tiny else {}), **options)
  languages = DataConfig(source_language='en', target_language='de')
  found = find_tests(
    (f'{texts.TEST}.{{lang}}.gz',), languages, data, place.folder / 'tests'
  )
  test, output = found[texts.TEST], workdir / 'translations.txt'
  flags = {
    'workdir': workdir,
    'input': test.source,
    'output': output,
    'average': 2 if place.tiny else _AVERAGE,
  }
  command = 'decode.py', *(f'--{flag}={flags[flag]}' for flag in flags)
  left = max(seconds - (time.monotonic() - begin), 0)
  with place.options(f'{name} decoding', seconds=left) as options:
    start(*command, **options)
  scores = corpus_scores(read_file(str(output)).lines, test.references, 'de')
  measured = {
    'bleu': scores.bleu,
    'chrf': scores.chrf,
    'signature': scores.bleu_signature,
    'minutes': (time.monotonic() - begin) / 60,
  }
  place.add('multi30k', str(seed), measured)
  return True


def _table(found: Mapping[str, Any]) -> str:
  rows = [
    (seed, *(f'{own[key]:.2f}' for key in ('bleu', 'chrf', 'minutes')))
    for seed, own in found.items()
  ]
  mean = statistics.fmean(own['bleu'] for own in found.values())
  reached = 'reaches' if mean >= _TARGET_BLEU else 'does not reach'
  return '\n'.join(
    (
      table(('seed', 'BLEU', 'chrF', 'minutes'), rows),
      f'mean of {len(found)}: {mean:.2f} BLEU, which {reached} '
      f'{_TARGET_BLEU:.1f}; minutes are those of the last start',
      next(iter(found.values()))['signature'],
    )
  )
