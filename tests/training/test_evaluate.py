"""Validation: of several directions, and the scores of other programs."""

import argparse
import json
import logging
import re
import subprocess
import sys
import unicodedata

import pytest
from programs import logged_messages
from tiny_run import TINY

from fusion_jax.analysis.report import __main__ as report
from fusion_jax.analysis.report.contents import gather
from fusion_jax.analysis.run_with_text import open_run_with_text
from fusion_jax.cli import decode
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
from fusion_jax.config.presets import changed
from fusion_jax.data.prepare import prepare
from fusion_jax.decoding.ensemble import in_direction
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.evaluation import compare
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
  with logged_messages() as messages:
    loop.run(config_in(folder), folder / 'run')
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
  corpus = prepare(config_in(folder).data)
  sources, _ = corpus.split('valid', 'en-fr').texts()
  found = Translator(own, own.config.decoding).translate(sources[:SENTENCES])
  text = (folder / 'run' / 'translations' / '2.en-fr.txt').read_text()
  assert list(found) == text.splitlines()


# What a model writes, which is normalised, and what the references have.
_TRANSLATIONS = [
  'Das Caf\u00e9 \u00f6ffnet um acht Uhr am Morgen.',
  'Die \u00c4pfel sind in diesem Jahr sehr gut und gro\u00df.',
  'Sie findet den Weg nach Hause auch ohne Karte.',
  'Er z\u00e4hlt 12 gr\u00fcne B\u00e4ume neben dem Haus.',
]
_FORMS = {
  'NFC': (lambda text: text),
  'NFD': (lambda text: unicodedata.normalize('NFD', text)),
  # A ligature, a fraction and an ellipsis, which only NFKC changes.
  'NFKC': (
    lambda text: text.replace('fi', '\ufb01').replace('12', '\u00bd\u2026')
  ),
  'full width': (
    lambda text: text.replace('12', '\uff11\uff12').replace('.', '\uff0e')
  ),
  'separators': (lambda text: text.replace(' ', '\u00a0', 1) + '\u2028'),
  'trailing blanks': (lambda text: text + ' \t\u3000 '),
}


# Of the last two lines one side is blank.
_HYPOTHESES = [*_TRANSLATIONS * len(_FORMS), '', 'Ein Hund.']
_REFERENCES = [
  *(form(line) for form in _FORMS.values() for line in _TRANSLATIONS),
  'Eine Katze.',
  '',
]
_MARK = '\ufeff'


@pytest.fixture
def fixed(monkeypatch):
  """Every model translates line i as _HYPOTHESES[i]."""

  def translate(self, lines, prefixes=()):
    for text, _ in zip(_HYPOTHESES, lines, strict=True):
      yield [Translation(text, 0.0, 0.0)]

  monkeypatch.setattr(Translator, 'translate_n_best', translate)


@pytest.fixture
def files(tmp_path):
  texts = {
    'valid.en': ''.join(f'{line}\n' for line in _HYPOTHESES),
    'valid.de': _MARK + ''.join(f'{line}\r\n' for line in _REFERENCES),
    # A mark of byte order is no part of a text.
    'bare.de': ''.join(f'{line}\r\n' for line in _REFERENCES),
  }
  for name, text in texts.items():
    (tmp_path / name).write_bytes(text.encode())
  return tmp_path


def _of_sacrebleu(folder, tokenizer):
  chosen = ['--tokenize', tokenizer] if tokenizer else []
  given = f'{folder}/bare.de -i {folder}/output.txt -w2 -m bleu chrf'.split()
  command = [sys.executable, '-m', 'sacrebleu', *given, *chosen]
  done = subprocess.run(command, capture_output=True, check=True)
  return [each['score'] for each in json.loads(done.stdout)]


def _trained(folder, tokenizer):
  config = changed(
    ExperimentConfig(),
    TINY
    | {
      'data.root': str(folder),
      'data.prepared': str(folder / 'prepared'),
      'data.valid': ('valid.{lang}',),
      # Some lines are longer, and are translated, in parts, and scored.
      'data.filter.max_length': 36,
      'decoding.max_source_length': 36,
      'training.translate_beam': ExperimentConfig().decoding.beam_size,
      'decoding.bleu_tokenizer': tokenizer,
      'training.steps': 1,
      'training.validate_every': 1,
    },
  )
  workdir = folder / 'run'
  loop.run(config, workdir)
  rows = map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines())
  (row,) = (row for row in rows if row['kind'] == 'valid')
  return workdir, [row['bleu'], row['chrf']]


def _decoded(workdir, folder, capsys):
  flags = {
    'workdir': workdir,
    'input': folder / 'valid.en',
    'output': folder / 'output.txt',
    'reference': folder / 'valid.de',
  }
  decode.main([f'--{name}={value}' for name, value in flags.items()])
  printed = capsys.readouterr().out
  return [float(x) for x in re.findall(r'(?m)^\S+ = ([\d.]+)', printed)]


def _compared(system, folder):
  flags = {
    'source': folder / 'valid.en',
    'reference': folder / 'valid.de',
    'system': f'run={system}',
    'output': folder / 'compared',
    'target_language': 'de',
    'jobs': 1,
  }
  compare.main([f'--{name}={value}' for name, value in flags.items()])
  numbers = json.loads((folder / 'compared' / 'compare.json').read_text())
  return [numbers['seeds'][x]['run']['mean'] for x in ('BLEU', 'chrF2')]


def _reported(workdir):
  arguments = report._parser().parse_args([f'--workdir={workdir}'])
  flags = argparse.Namespace(**vars(arguments) | {'workdir': workdir})
  scores = gather(open_run_with_text(flags), 'run', flags).scores
  return [scores.bleu, scores.chrf]


def _check_scores(files, tokenizer, capsys):
  """Compares the scores of all programs; returns their names."""
  workdir, of_training = _trained(files, tokenizer)
  found = {
    'training': of_training,
    'decode': _decoded(workdir, files, capsys),
    'compare': _compared(workdir, files),
    'report': _reported(workdir),
  }
  expected = _of_sacrebleu(files, tokenizer)
  rounded = {
    name: [round(score, 2) for score in scores]
    for name, scores in found.items()
  }
  assert rounded == dict.fromkeys(found, expected)
  return list(found)


@pytest.mark.usefixtures('fixed')
@pytest.mark.parametrize(
  'tokenizer', ['', pytest.param('char', marks=pytest.mark.extended)]
)
def test_all_programs_score_as_sacrebleu_does(files, tokenizer, capsys, caplog):
  caplog.set_level(logging.INFO)
  programs = _check_scores(files, tokenizer, capsys)
  # Those in NFD with an accent; NFC changes no other form.
  said = [m for m in caplog.messages if ' 3 of 26 lines, line 5 first' in m]
  assert len(said) == len(programs)
  assert (
    'valid: 10 of 26 pairs, empty or too long, are in no loss' in caplog.text
  )
  for name in ('output.txt', 'run/translations/1.txt'):
    *lines, end = (files / name).read_text().split('\n')
    assert end == ''
    assert [bool(line) for line in lines] == [bool(x) for x in _HYPOTHESES]
