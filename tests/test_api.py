"""The Python interface against the classes below it."""

import concurrent.futures
import dataclasses
import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from saved_runs import SavedRun
from tiny_run import TINY

import fusion_jax
from fusion_jax.config.flags import override
from fusion_jax.decoding.score import Scorer
from fusion_jax.decoding.translate import Translator
from fusion_jax.runs.loading import CheckpointSelection, load_run

_LINES = ['the cat sat', '', 'dogs in the house']
_FEW = {'beam_size': 2, 'max_length_ratio': 1.0, 'max_length_extra': 2}


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  run = SavedRun(tmp_path_factory.mktemp('api') / 'run')
  run.save({1: 0.5, 2: 0.9})
  return run.workdir


@pytest.fixture(scope='module')
def model(saved):
  return fusion_jax.load(saved, step=2)


def test_translations_are_those_of_the_translator(saved, model):
  run = load_run(saved, CheckpointSelection(2))
  options = dataclasses.replace(run.config.decoding, **_FEW)
  expected = list(Translator(run, options, 2).translate_n_best(_LINES))
  assert model.translate_n_best(_LINES, 2, **_FEW) == expected
  assert model.translate(_LINES, **_FEW) == [best.text for best, *_ in expected]
  assert model.step == 2
  assert model.config == run.config


def test_prefixes_samples_and_no_lines(model):
  begun = model.translate(['the cat'], ['dogs'], **_FEW)
  assert begun[0].startswith('dogs')
  drawn = {'search': 'sample', 'temperature': 0.5, 'max_length_extra': 2}
  first, again, other = (
    model.translate(_LINES, seed=seed, **drawn) for seed in (1, 1, 2)
  )
  assert first == again != other
  assert (
    model.translate([]) == model.score([], []) == model.encode([], []) == []
  )


def test_scores_are_those_of_the_scorer(saved, model):
  run = load_run(saved, CheckpointSelection(2))
  pairs = [('the cat sat', 'a dog'), ('', '')]
  expected = list(Scorer(run, run.config.decoding).score(pairs))
  assert model.score(*zip(*pairs, strict=True)) == expected


def test_states_have_a_row_for_every_subword(model):
  states, _ = model.encode(_LINES[::2], ['a dog', 'cats'])
  layers = model.config.model.encoder_layers + 1
  assert states.source[-1] == states.target[-1] == '</s>'
  assert states.encoder.shape == (layers, len(states.source), 16)
  assert states.decoder.shape == (layers, len(states.target), 16)
  assert np.isfinite(states.encoder).all()


def test_a_transformer_is_made_from_a_config(model):
  of_run = model.transformer
  sizes = of_run.source_vocabulary, of_run.target_vocabulary
  made = fusion_jax.Transformer(model.config.model, *sizes, of_run.start_id)
  assert made == of_run
  ids, lengths = jnp.array([[4, 5, 3]]), jnp.array([3])
  output = made.apply({'params': model.parameters}, ids, lengths, ids)
  assert output.features.shape == (1, 3, 16)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda m: m.translate('one line'), 'lines: must be a list of texts'),
    (lambda m: m.score('one', ['two']), 'sources: must be a list of texts'),
    (lambda m: m.score(['one'], []), '1 sources, but 0 translations'),
    (lambda m: m.translate(['a', 'b'], ['c']), '2 lines, but 1 prefixes'),
    (lambda m: m.translate(['a'], beam=2), 'no such field; did you mean beam_'),
    (lambda m: m.translate(['a'], beam_size=0), 'beam_size: must be >= 1'),
    (lambda m: m.translate_n_best(['a'], 9, beam_size=2), 'n_best must be'),
    (lambda m: fusion_jax.load('absent'), 'absent: not a run directory'),
  ],
)
def test_bad_input_is_one_line(model, call, message):
  with pytest.raises(fusion_jax.InputError, match=message) as raised:
    call(model)
  assert '\n' not in str(raised.value)


@pytest.mark.extended
def test_a_config_object_is_trained_resumed_and_continued(tmp_path):
  fields = TINY | {
    'data.prepared': tmp_path / 'prepared',
    'training.steps': 2,
    'training.validate_every': 2,
    'training.translate_sentences': 4,
  }
  values = [(name, str(value)) for name, value in fields.items()]
  config = override(fusion_jax.load_config('quickstart'), values)
  # As in a notebook's server: signals are for the main thread alone.
  with concurrent.futures.ThreadPoolExecutor(1) as pool:
    pool.submit(fusion_jax.train, config, tmp_path / 'run').result()
  assert fusion_jax.load(tmp_path / 'run').step == 2
  training = dataclasses.replace(config.training, steps=4)
  longer = dataclasses.replace(config, training=training)
  fusion_jax.train(longer, tmp_path / 'run')
  assert fusion_jax.load(tmp_path / 'run', step='last').step == 4
  fusion_jax.train(config, tmp_path / 'other', init_from=tmp_path / 'run')
  other = fusion_jax.load(tmp_path / 'other')
  assert other.config.training.init_from == str(tmp_path / 'run')


@pytest.mark.parametrize(
  ('text', 'fault'),
  [
    (None, 'lines: text 2 must be a str, got None'),
    (3, 'lines: text 2 must be a str, got 3'),
    ('two\nlines', 'lines: text 2 has a line break; give each line by itself'),
    ('two\rlines', 'lines: text 2 has a line break; give each line by itself'),
    (
      'half \ud800',
      r"lines: text 2 has half a character, '\\ud800'; it must be Unicode",
    ),
  ],
)
def test_texts_that_are_no_lines(model, text, fault):
  with pytest.raises(fusion_jax.InputError, match=f'^{fault}$'):
    model.translate(iter(['the cat', text]))


def test_lines_of_a_file_may_keep_their_ends(model):
  plain = model.translate(['the cat', 'dogs'], **_FEW)
  assert model.translate(['the cat\n', 'dogs\r\n'], **_FEW) == plain


# What a user writes; the third statement is wrong.
_SCRIPT = """
import fusion_jax

model = fusion_jax.load('runs/mine')
texts: list[str] = model.translate(['a dog'])
number: int = model.translate(['a dog'])
scored: list[fusion_jax.Scored] = model.score(['a dog'], texts)
"""


@pytest.mark.extended
def test_type_checkers_see_the_types_of_the_package(tmp_path):
  script = tmp_path / 'script.py'
  script.write_text(_SCRIPT)
  flags = f'--cache-dir={tmp_path}', f'--python-executable={sys.executable}'
  checked = subprocess.run(
    [sys.executable, '-m', 'mypy', *flags, script],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'},
  )
  (error, _) = checked.stdout.splitlines()
  assert 'script.py:6: error: Incompatible types in assignment' in error
  assert '"list[str]", variable has type "int"' in error


def test_a_model_says_what_it_is(saved, model):
  assert repr(model) == (
    f"TranslationModel({str(saved)!r}, step=2, encoder='none', decoder='none')"
  )


def test_a_translation_has_its_subwords(model):
  (best, *_), *_ = model.translate_n_best(['the cat sat'], 2, **_FEW)
  assert len(best.subwords) == len(best.token_log_probabilities)
  assert ''.join(best.subwords[:-1]).replace('▁', ' ').strip() == best.text
