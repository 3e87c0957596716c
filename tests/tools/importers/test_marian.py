"""MarianMT models as run directories."""

import json
import os
import pickle
import zipfile

import jax
import numpy as np
import pytest
import safetensors.numpy
from recorded import (
  MARIAN,
  check_parity,
  copied,
  import_model,
  log_probabilities,
  recorded,
  translated,
)

from fusion_jax.decoding.ensemble import alone, in_direction
from fusion_jax.decoding.sentences import PairReader, SentenceEncoder
from fusion_jax.errors import InputError
from fusion_jax.runs.loading import load_run


@pytest.fixture(scope='module')
def marian_run(tmp_path_factory):
  """The run directory of the recorded MarianMT model."""
  output = tmp_path_factory.mktemp('imported') / 'run'
  assert not import_model('marian', MARIAN, output)
  return output


def test_it_computes_what_transformers_computes(marian_run):
  check_parity(marian_run, recorded(MARIAN))


@pytest.mark.extended
def test_beam_search_finds_what_transformers_finds_or_better(marian_run):
  # The search here lets more hypotheses end: among the best 8 extensions, in
  # transformers among the best 4.
  run, expected = load_run(marian_run), recorded(MARIAN)
  found = translated(run, expected['lines'], expected['limit'], beam=4)
  pairs = list(zip(expected['source'], found, expected['beam'], strict=True))
  assert sum(own == other for _, own, other in pairs) >= 9
  for source, own, other in pairs:
    if own == other:
      continue
    scores = [
      log_probabilities(run, [source], [target]).mean()
      for target in (own, other)
    ]
    assert scores[0] >= scores[1]


def test_the_run_decodes_as_generate_does(marian_run):
  config = load_run(marian_run).config
  assert config.decoding.forbidden == ('<pad>',)
  assert config.decoding.length_penalty == 'length'
  assert config.decoding.beam_size == 4
  assert (config.data.source_language, config.data.target_language) == (
    'en',
    'de',
  )


@pytest.fixture(scope='module')
def multilingual(tmp_path_factory):
  """A run that translates into German, of a model that also has French."""
  tmp_path = tmp_path_factory.mktemp('multilingual')
  folder = copied(MARIAN, tmp_path)
  path = folder / 'vocab.json'
  text = path.read_text()
  fillers = [p for p in json.loads(text) if 'filler' in p][:2]
  for filler, code in zip(fillers, ('>>de<<', '>>fra<<'), strict=True):
    text = text.replace(f'"{filler}"', f'"{code}"')
  path.write_text(text)
  assert not import_model('marian', folder, tmp_path / 'run')
  return in_direction(load_run(tmp_path / 'run'), 'run')


def _source(run, line):
  encoder = SentenceEncoder(alone(run), run.config.decoding)
  (sentence,) = encoder.encode(7, line)
  pair = PairReader(run, run.config.decoding).encode('line 7', line, 'a')
  assert sentence.sources == (pair.source,)
  return pair.source


def test_a_code_that_the_user_wrote_is_not_put_twice(multilingual):
  line = recorded(MARIAN)['lines'][0]
  expected = _source(multilingual, line)
  code = multilingual.source_tokenizer.id_of('>>de<<')
  assert expected.count(code) == 1
  lines = f'>>de<< {line}', f'>>de<<{line}', f' >>de<< >>de<< {line}'
  for written in lines:
    assert _source(multilingual, written) == expected


def test_the_code_of_another_language_is_refused(multilingual):
  with pytest.raises(InputError, match=r'^line 7: begins with >>fra<<, and'):
    _source(multilingual, '>>fra<< a dog')


def test_flags_of_fairseq_are_refused(tmp_path, capsys):
  assert import_model('marian', MARIAN, tmp_path, '--source_spm=a') == 2
  assert 'need --from=fairseq' in capsys.readouterr().err


def _in_parts(folder, name, write):
  """Spreads the weights over two files and their index."""
  arrays = safetensors.numpy.load_file(folder / 'model.safetensors')
  (folder / 'model.safetensors').unlink()
  files = [f'part-{n}-{name}' for n in (1, 2)]
  places = {each: files[n % 2] for n, each in enumerate(sorted(arrays))}
  for file in files:
    part = {n: a for n, a in arrays.items() if places[n] == file}
    write(part, folder / file)
  index = json.dumps({'metadata': {}, 'weight_map': places})
  (folder / f'{name}.index.json').write_text(index)
  return files


def test_weights_in_parts_are_those_in_one_file(tmp_path, marian_run):
  folder = copied(MARIAN, tmp_path)
  _in_parts(folder, 'model.safetensors', safetensors.numpy.save_file)
  assert not import_model('marian', folder, tmp_path / 'run')
  jax.tree.map(
    np.testing.assert_array_equal,
    load_run(tmp_path / 'run').parameters,
    load_run(marian_run).parameters,
  )


def _without(folder, name):
  (folder / name).unlink()


def _in_json(folder, name, **changes):
  path = folder / name
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _weights(folder, change):
  path = folder / 'model.safetensors'
  arrays = safetensors.numpy.load_file(path)
  change(arrays)
  safetensors.numpy.save_file(arrays, path)


def _transposed(arrays):
  name = 'model.encoder.layers.0.fc1.weight'
  arrays[name] = np.ascontiguousarray(arrays[name].T)


def _not_finite(arrays):
  arrays['model.encoder.layers.0.fc1.bias'][0] = np.nan


class _Evil:
  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return open, (str(self.path), 'w')


def _with_code(folder):
  (folder / 'model.safetensors').unlink()
  with zipfile.ZipFile(folder / 'pytorch_model.bin', 'w') as archive:
    code = pickle.dumps({'weight': _Evil(folder / 'was_run')})
    archive.writestr('archive/data.pkl', code)


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda f: _without(f, 'config.json'), 'it has no config.json'),
    (
      lambda f: _in_json(f, 'config.json', model_type='bart'),
      'model_type: must be "marian", got \'bart\'',
    ),
    (
      lambda f: _in_json(f, 'config.json', normalize_before=True),
      'normalize_before: must be False, got True',
    ),
    (
      lambda f: _in_json(f, 'config.json', activation_function='gelu'),
      "activation_function: must be 'relu', 'swish' or 'silu', got 'gelu'",
    ),
    (
      lambda f: _in_json(f, 'config.json', decoder_ffn_dim=30),
      'encoder_ffn_dim is 24 and decoder_ffn_dim is 30',
    ),
    (
      lambda f: _weights(f, lambda a: a.pop('model.decoder.layers.1.fc2.bias')),
      'lacks the weight model.decoder.layers.1.fc2.bias',
    ),
    (
      lambda f: _weights(f, lambda a: a.update(more=np.zeros(1))),
      'has the weight more, which the model',
    ),
    (
      lambda f: _weights(f, _transposed),
      'fc1.weight has the shape [16, 24], and the model of its configuration '
      'needs [24, 16]',
    ),
    (lambda f: _weights(f, _not_finite), 'fc1.bias is not finite'),
    (
      lambda f: (f / 'added_tokens.json').write_text('{"<new>": 100}'),
      "added_tokens.json: adds tokens to vocab.json, '<new>' for example",
    ),
    # What is opened would be waited for.
    (lambda f: os.mkfifo(f / 'added_tokens.json'), 'json: is a folder, a pipe'),
    (lambda f: _without(f, 'source.spm'), 'source.spm'),
    (
      lambda f: _without(f, 'tokenizer_config.json'),
      'give --source_language and --target_language',
    ),
    (
      _with_code,
      # io.open; _io.open since Python 3.12.
      f'its pickle asks for {open.__module__}.open, which is no tensor',
    ),
  ],
)
def test_bad_input_is_one_line_and_writes_nothing(
  tmp_path, capsys, damage, message
):
  folder = copied(MARIAN, tmp_path)
  damage(folder)
  assert import_model('marian', folder, tmp_path / 'run') == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('error: ')
  assert message in line
  assert {path.name for path in tmp_path.iterdir()} == {'model'}
  assert not (folder / 'was_run').exists()
