"""Exported programs translate as the runs do that they were exported from."""

import dataclasses
import importlib
import json
import os
import runpy
import subprocess
import sys

import jax
import jax.export
import numpy as np
import pytest
from cases import CASES
from copying import LINES, make_tokenizer
from tiers import extended_but

from fusion_jax.config import DecodingConfig, ExperimentConfig, ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.data.tokenizer import normalise
from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.runs import loading
from fusion_jax.runs.loading import TrainedModel, make_model
from fusion_jax.tools.export import stablehlo

_TINY = ModelConfig(
  width=16,
  filter=16,
  heads=2,
  encoder_layers=2,
  decoder_layers=2,
  tied_embeddings='none',
)
_DECODING = DecodingConfig(
  beam_size=2,
  max_length_ratio=1.0,
  max_length_extra=3,
  # Random models repeat themselves, or end at once.
  min_length_extra=3,
  no_repeat_ngram=1,
  max_source_length=32,
  batch_tokens=64,
)
# Those of at most 31 subwords.
_TEXT = [line for line in LINES if len(line) < 30]
# None of these may be imported by load.py.
_OURS = ('fusion_jax', 'flax', 'jaxtyping', 'optax', 'orbax', 'pydantic')
_COMPILED_QUICKLY = '--xla_backend_optimization_level=0'
_ISOLATED = f"""
import runpy, sys
sys.modules.update(dict.fromkeys({_OURS}))
runpy.run_path(sys.argv[1], run_name='__main__')
"""


_LINEAR = SideConfig(fusion='linear')
# A part of the schemes, and what is no scheme.
_MODELS = {
  name: dataclasses.replace(CASES[name], width=16)
  for name in ('shortcut', 'value-shared-both', *list(SCHEMES)[::-3])
} | {
  'scan': dataclasses.replace(
    _TINY,
    encoder=_LINEAR,
    decoder=_LINEAR,
    scan_layers=True,
    compute_dtype='bfloat16',
  )
}


@pytest.fixture(scope='module')
def tokenizer():
  return make_tokenizer()


def _random_run(tokenizer, model_config, decoding=_DECODING):
  config = ExperimentConfig(model=model_config, decoding=decoding)
  model = make_model(config, tokenizer, tokenizer)
  # A seed with which every model below translates line by line otherwise.
  rng = np.random.default_rng(8)
  # Norms have scales near 1; all else is large, which makes large differences
  # of hypotheses.
  parameters = jax.tree_util.tree_map_with_path(
    lambda path, x: (
      np.float32('scale' in str(path[-1]))
      + 0.5 * rng.standard_normal(x.shape, np.float32)
    ),
    jax.eval_shape(lambda: initial_parameters(model, 0)),
  )
  return TrainedModel(config, model, parameters, 7, tokenizer, tokenizer)


def _translated(run, lines, **changes):
  options = dataclasses.replace(run.config.decoding, **changes)
  return list(Translator(run, options, devices=1).translate(lines))


@pytest.fixture(scope='module')
def exported(tokenizer, tmp_path_factory):
  """A run and its exported folder."""
  run = _random_run(tokenizer, _TINY)
  folder = tmp_path_factory.mktemp('programs') / 'out'
  stablehlo.export(
    run,
    folder,
    ((4, 32), (2, 8)),
    n_best=2,
    decoding={'beam_size': 3, 'min_length_extra': 4},
  )
  return run, folder


def _load(folder):
  return runpy.run_path(str(folder / 'load.py'))


def _isolated(folder, text):
  """Runs load.py where nothing of this project can be imported."""
  environment = os.environ | {'XLA_FLAGS': _COMPILED_QUICKLY}
  environment.pop('PYTHONPATH', None)
  return subprocess.run(
    [sys.executable, '-P', '-c', _ISOLATED, folder / 'load.py'],
    input=text.encode(),
    capture_output=True,
    cwd=folder.parent,
    env=environment,
    check=False,
  )


@pytest.fixture
def unchecked(monkeypatch):
  """Saves the comparison of an export where the test makes its own."""
  monkeypatch.setattr(stablehlo, 'difference_of_programs', lambda *given: 0.0)


@pytest.mark.usefixtures('unchecked')
@pytest.mark.parametrize('name', extended_but(_MODELS, ['shortcut']))
def test_every_scheme(tokenizer, tmp_path, name):
  run = _random_run(tokenizer, _MODELS[name])
  stablehlo.export(run, tmp_path / 'out', ((2, 8),))
  lines = ['a dog', 'the cat', '', 'cats']
  found = _load(tmp_path / 'out')['translate'](lines)
  assert found == _translated(run, lines)
  assert found[2] == ''
  assert len(set(found)) > 2


@pytest.mark.extended
def test_text_is_translated_without_this_project(exported):
  run, folder = exported
  lines = [*_TEXT, '\ufeffthe  cat\u2028sat\r', 'a\x00dog']
  done = _isolated(folder, '\n'.join(lines))
  assert done.stderr.decode() == ''
  found = done.stdout.decode().removesuffix('\n').split('\n')
  assert found == _translated(run, lines, beam_size=3, min_length_extra=4)
  assert len(set(found)) > 4


@pytest.mark.extended
def test_the_folder_is_whole_and_describes_itself(exported):
  run, folder = exported
  names = {path.name for path in folder.iterdir()}
  common = {'export.json', 'load.py', 'source.model', 'target.model'}
  assert names == common | {'2x8.stablehlo', '4x32.stablehlo', 'weights.npz'}
  description = json.loads((folder / 'export.json').read_text())
  assert description['format'] == stablehlo.FORMAT
  # 1.0 * 8 + 3 and 1.0 * 32 + 3, of the decoding options above.
  targets = {each['file']: each['target'] for each in description['shapes']}
  assert targets == {'2x8.stablehlo': 11, '4x32.stablehlo': 35}
  for each in description['shapes']:
    data = bytearray((folder / each['file']).read_bytes())
    loaded = jax.export.deserialize(data)
    assert loaded.platforms == ('cpu', 'cuda', 'tpu')
    rows, source, target = each['rows'], each['source'], each['target']
    shapes = [aval.shape for aval in loaded.in_avals[-3:]]
    assert shapes == [(rows, source), (rows,), (rows,)]
    found = dict(zip(description['results'], loaded.out_avals, strict=True))
    assert found['tokens'].shape == (rows, 2, target)
    weights = len(jax.tree.leaves(run.parameters))
    assert len(loaded.in_avals) == 3 + weights


@pytest.mark.extended
def test_text_is_normalised_as_for_training(exported, tokenizer):
  _, folder = exported
  encode = _load(folder)['encode']
  lines = [*LINES, 'e\u0301\u2581a\x85b\ufeff \u3000c', '\ufeff\t']
  lines.append('\xad\u200b')
  for line in lines:
    text = normalise(line)
    ids = [*tokenizer.encode(text), tokenizer.vocabulary.end] if text else []
    assert encode(line) == ids


@pytest.mark.extended
def test_a_line_that_is_too_long_is_refused(exported):
  _, folder = exported
  done = _isolated(folder, 'a dog\n' + 'the cat sat ' * 20)
  assert done.returncode == 1
  assert done.stdout == b''
  (error,) = done.stderr.decode().splitlines()
  assert error.startswith('error: line 2: ')
  assert error.endswith('at most 32 can be translated; cut the line')


@pytest.mark.extended
@pytest.mark.usefixtures('unchecked')
def test_samples_are_those_of_the_run(tokenizer, tmp_path):
  run = _random_run(tokenizer, _TINY)
  sampling = {'search': 'sample', 'top_k': 8, 'top_p': 0.9, 'seed': 3}
  stablehlo.export(run, tmp_path / 'out', ((2, 8),), decoding=sampling)
  # Drawn by the number of the line among those that are not empty.
  lines = ['a dog', '', 'a dog', 'cats']
  found = _load(tmp_path / 'out')['translate'](lines)
  assert found == _translated(run, lines, **sampling)
  assert len(set(found)) == 4


@pytest.mark.extended
def test_a_program_that_differs_is_not_exported(
  tokenizer, tmp_path, monkeypatch
):
  right = stablehlo._write_common

  def wrong(folder, program):
    scaled = jax.tree.map(lambda x: x * 1.0001, program.run.parameters)
    run = dataclasses.replace(program.run, parameters=scaled)
    right(folder, dataclasses.replace(program, run=run))

  monkeypatch.setattr(stablehlo, '_write_common', wrong)
  run = _random_run(tokenizer, _TINY)
  with pytest.raises(RuntimeError, match=r'differs by .* not exported'):
    stablehlo.export(run, tmp_path / 'out', ((1, 8),))
  assert not list(tmp_path.iterdir())


def test_the_shapes_that_are_exported_by_default(tokenizer):
  """batch_tokens / (beam * source) rows; 2 * source + 10 tokens."""
  shapes = stablehlo._default_shapes(DecodingConfig(), None)
  assert shapes == [
    (1, 16, 42),
    (256, 16, 42),
    (1, 64, 138),
    (64, 64, 138),
    (1, 256, 522),
    (16, 256, 522),
  ]


def test_what_a_run_cannot_do_is_refused(tokenizer, tmp_path):
  learned = dataclasses.replace(_TINY, positions='learned', max_positions=256)
  run = _random_run(tokenizer, learned)
  for asked, message in (
    ({'shapes': ((2, 300),)}, '=2x300: the model has 256 learned'),
    ({'n_best': 3}, '=3: must be between 1 and the beam size 2'),
    ({'decoding': {'forbidden': ('xyz',)}}, "'xyz' is no piece of the target"),
  ):
    with pytest.raises(InputError, match=message):
      stablehlo.export(run, tmp_path / 'out', **asked)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    (['--platforms=cpu,gpu'], "'gpu' is no platform; must be of cpu, cuda, "),
    (['--platforms=tpu'], 'tpu: must have cpu too, on which the export is'),
    (['--shapes=0x32'], "as 64x32, got '0x32'"),
    (['--output=full'], '--output=full: not empty; give a new or empty'),
    (
      ['--format=ctranslate2', '--shapes=1x8'],
      '--shapes has no meaning with --format=ctranslate2',
    ),
  ],
)
def test_mistakes_end_in_one_line(
  tokenizer, tmp_path, monkeypatch, capsys, flags, message
):
  (tmp_path / 'full').mkdir()
  (tmp_path / 'full' / 'kept').write_text('mine')
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(
    loading, 'load_run', lambda *given: _random_run(tokenizer, _TINY)
  )
  main = importlib.import_module('fusion_jax.tools.export.__main__').main
  common = ['--workdir=run', '--format=stablehlo', '--output=out']
  assert main([*common, *flags]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('error: ')
  assert message in line
  assert [path.name for path in tmp_path.rglob('*')] == ['full', 'kept']
