"""What is trained on Multi30k: its whole recipe, and the comparison of schemes.

The recipe of configs/multi30k.py is trained and scored seed by seed; the
comparison runs for as long as there is time.
"""

import functools
import gzip
import statistics
import subprocess
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.acceleration.place import Place
from benchmarks.acceleration.work import Part, Piece
from benchmarks.common import as_flags, table
from benchmarks.comparison.texts import find_tests
from benchmarks.programs import start, train
from fusion_jax.config import DataConfig
from fusion_jax.evaluation.systems import read_file
from fusion_jax.metrics import corpus_scores

_CONFIG, _TEST = 'configs/multi30k.py:en-de', 'test_2016_flickr'
_TARGET_BLEU = 40.0
_TINY_LINES = {'train': 400, 'val': 16, _TEST: 8}
_TINY = {
  'data.tokenizer.vocabulary_size': 300,
  'data.batch.tokens': 512,
  'data.batch.shapes': 1,
  'model.width': 16,
  'model.filter': 32,
  'model.heads': 2,
  'model.encoder_layers': 1,
  'model.decoder_layers': 1,
  'training.log_every': 1,
  'training.steps': 10,
  'training.save_every': 5,
  'training.validate_every': 10,
}
_TINY_COMPARISON = {
  'recipe': Path(__file__).with_name('tiny.toml'),
  'phases': 'plain',
  'schemes': 'none',
}
# For what the comparison does after its --minutes: to stop a run, to report.
_REST_SECONDS = 60


def multi30k(place: Place) -> Part:
  """A piece for each seed."""
  missing = _missing(place)
  seeds = (0,) if place.tiny else (0, 1, 2)
  pieces = [
    Piece(
      f'multi30k seed {seed}',
      0.8 if place.tiny else 5.0,
      functools.partial(_train, place, seed),
      missing,
    )
    for seed in seeds
  ]
  if missing:
    pieces = [pieces[0]._replace(name='multi30k')]
  return Part(
    f'{_CONFIG}, trained and scored: BLEU of each seed',
    pieces,
    functools.partial(place.measured, 'multi30k'),
    _table,
  )


def comparison(place: Place) -> Part:
  """One piece, which ends when the time is over."""
  run = functools.partial(_compare, place)
  minutes = 1.5 if place.tiny else 5.0
  return Part(
    'the comparison of all schemes by its frozen recipe, as far as it gets',
    [Piece('comparison', minutes, run, _missing(place))],
    functools.partial(place.measured, 'comparison'),
    lambda found: found['report'],
  )


def _missing(place: Place) -> str:
  """Why there is no Multi30k; '' where there is."""
  if place.data is None:
    return 'no --data: give the folder of Multi30k'
  path = place.data / 'train.en.gz'
  return '' if path.is_file() else f'--data has no Multi30k: {path}: no file'


def _data(place: Place) -> Path:
  """The folder of the text; of its first lines, for tiny sizes."""
  if not place.tiny:
    return place.data
  short = place.folder / 'first_lines'
  short.mkdir(exist_ok=True)
  for split, lines in _TINY_LINES.items():
    for name in (f'{split}.en.gz', f'{split}.de.gz'):
      with gzip.open(place.data / name, 'rb') as whole:
        first = b''.join(islice(whole, lines))
      (short / name).write_bytes(gzip.compress(first, mtime=0))
  return short


def _train(place: Place, seed: int, seconds: float) -> bool:
  begin = time.monotonic()
  name, data = f'multi30k seed {seed}', _data(place)
  workdir = place.folder / 'multi30k' / f'seed-{seed}'
  fields = {
    'data.root': data,
    'data.prepared': place.folder / 'prepared',
    'training.seed': seed,
  }
  with place.options(name, seconds=seconds) as options:
    train(_CONFIG, workdir, fields | (_TINY if place.tiny else {}), **options)
  languages = DataConfig(source_language='en', target_language='de')
  pattern = f'{_TEST}.{{lang}}.gz'
  test = find_tests([pattern], languages, data, place.folder / 'tests')[_TEST]
  output = workdir / 'translations.txt'
  flags = {'workdir': workdir, 'input': test.source, 'output': output}
  flags['average'] = 2 if place.tiny else 5
  left = max(seconds - (time.monotonic() - begin), 0)
  with place.options(f'{name} decoding', seconds=left) as options:
    start('decode.py', *as_flags(flags), **options)
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


def _compare(place: Place, seconds: float) -> bool:
  begin, own = time.monotonic(), seconds - _REST_SECONDS
  flags = {
    'priority': 'normal',
    'data': _data(place),
    'workdir': place.folder / 'comparison' / 'runs',
    'results': place.folder / 'comparison' / 'results',
    'minutes': own / 60,
  }
  command = as_flags(flags | (_TINY_COMPARISON if place.tiny else {}))
  report = ''
  with place.options('comparison', seconds=seconds) as options:
    try:
      report = start('-m', 'benchmarks.compare_fusions', *command, **options)
    except subprocess.CalledProcessError as error:
      report = error.output
      raise
    finally:
      if report:
        place.add('comparison', 'report', report)
  return time.monotonic() - begin < own
