"""A run of several directions: what it logs, keeps and validates."""

import json
import logging

import pytest

from fusion_jax.config import (
  BatchConfig,
  DataConfig,
  DecodingConfig,
  Direction,
  ExperimentConfig,
  ModelConfig,
  TokenizerConfig,
  TrainingConfig,
)
from fusion_jax.config.flags import override
from fusion_jax.decoding.direction import in_direction
from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError
from fusion_jax.runs.loading import load_run
from fusion_jax.training import loop

NAMES = ['en-de', 'de-en', 'en-fr']
SENTENCES = 3


def direction(name, **fields):
  source, target = name.split('-')
  fields = {'train': ('embedded:train',), 'valid': ('embedded:valid',)} | fields
  return Direction(source, target, **fields)


def config_in(folder):
  directions = (
    direction('en-de'),
    direction('de-en', weight=2.0),
    direction('en-fr'),
    # Trained and not validated.
    direction('fr-en', valid=()),
  )
  return ExperimentConfig(
    data=DataConfig(
      directions=directions,
      target_tag='<2{lang}>',
      prepared=str(folder / 'prepared'),
      embedded_pairs=100,
      tokenizer=TokenizerConfig(vocabulary_size=400),
      batch=BatchConfig(tokens=512, shapes=1),
    ),
    model=ModelConfig(
      width=16, filter=16, heads=2, encoder_layers=1, decoder_layers=1
    ),
    training=TrainingConfig(
      steps=2, validate_every=2, log_every=1, translate_sentences=SENTENCES
    ),
    decoding=DecodingConfig(beam_size=1, max_source_length=32),
  )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('several')


@pytest.fixture(scope='module')
def logged(folder):
  """The messages of a run of two steps."""
  handler = logging.Handler()
  messages = []
  handler.emit = lambda record: messages.append(record.getMessage())
  logger = logging.getLogger('fusion_jax')
  level = logger.level
  logger.addHandler(handler)
  logger.setLevel(logging.INFO)
  loop.run(config_in(folder), folder / 'run')
  logger.removeHandler(handler)
  logger.setLevel(level)
  return messages


@pytest.fixture(scope='module')
def values(folder, logged):
  lines = (folder / 'run' / 'metrics.jsonl').read_text().splitlines()
  (found,) = [v for v in map(json.loads, lines) if v['kind'] == 'valid']
  return found


@pytest.mark.extended
@pytest.mark.parametrize('name', ['loss', 'bleu', 'chrf'])
def test_the_whole_is_the_mean_of_the_directions(values, name):
  own = [values[f'{name}/{each}'] for each in NAMES]
  assert values[name] == pytest.approx(sum(own) / len(own))
  if name == 'loss':
    assert len(set(own)) == len(own)
  assert f'{name}/fr-en' not in values


@pytest.mark.extended
def test_each_direction_has_its_translations_and_its_line(
  folder, logged, values
):
  files = sorted(p.name for p in (folder / 'run' / 'translations').iterdir())
  assert files == sorted(f'2.{each}.txt' for each in NAMES)
  for each in NAMES:
    text = (folder / 'run' / 'translations' / f'2.{each}.txt').read_text()
    assert len(text.splitlines()) == SENTENCES
    said = f'validation, {each}: BLEU and chrF are of the first {SENTENCES} of '
    assert len([m for m in logged if m.startswith(said)]) == 1
    (line,) = [
      m for m in logged if m.startswith(f'validation at step 2, {each}')
    ]
    assert f'nll {values[f"loss/{each}"]:.4f}' in line
  (line,) = [m for m in logged if 'mean of 3 directions' in m]
  assert f'BLEU {values["bleu"]:.2f}' in line


@pytest.mark.extended
def test_the_mixture_is_told(logged):
  (table,) = [m for m in logged if m.startswith('mixture:')]
  # Of 400 slots one share each, and two of the second direction.
  rows = [line.split() for line in table.splitlines()[2:]]
  assert [row[:3] for row in rows] == [
    ['en-de', '100', '80'],
    ['de-en', '100', '160'],
    ['en-fr', '100', '80'],
    ['fr-en', '100', '80'],
  ]


@pytest.mark.extended
def test_the_run_translates_as_its_validation_did(folder, logged):
  run = load_run(folder / 'run')
  own = in_direction(run, 'run', 'en', 'fr')
  corpus = loop.prepare(config_in(folder).data)
  sources, _ = corpus.split('valid', 'en-fr').texts()
  found = Translator(own, own.config.decoding).translate(sources[:SENTENCES])
  text = (folder / 'run' / 'translations' / '2.en-fr.txt').read_text()
  assert list(found) == text.splitlines()


@pytest.mark.extended
def test_another_direction_is_another_run(folder, logged):
  config = override(
    config_in(folder), [('data.directions.1.weight', '3'), ('name', 'new')]
  )
  message = r'data.directions.1.weight \(2.0 there, 3.0 given\); choose'
  with pytest.raises(InputError, match=message):
    loop.run(config, folder / 'run')
  fewer = [('data.directions', '[]'), ('data.target_tag', '')]
  with pytest.raises(
    InputError, match=r'belongs to a run.* may change name, data'
  ):
    loop.run(override(config_in(folder), fewer), folder / 'run')
