"""The scheme of docs/own_scheme.md: every program works with it."""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flax import linen as nn
from tiny_run import TINY

from fusion_jax import fusion
from fusion_jax.config import ModelConfig, SideConfig
from fusion_jax.config import fusion as fusion_options
from fusion_jax.config.flags import parse_arguments, run_user_dir
from fusion_jax.errors import InputError
from fusion_jax.fusion.scheme import on_both_sides
from fusion_jax.runs.loading import load_run

ROOT = Path(__file__).parents[2]
_FUSED = (
  '--config.model.encoder.fusion=weighted_mean',
  '--config.model.encoder.options.temperature=2',
  '--config.model.decoder.fusion=weighted_mean',
)


def _forget():
  """Takes the scheme out of the tables, as if each program started anew."""
  fusion_options.ROWS['fusion'].pop('weighted_mean', None)


@pytest.fixture(scope='module')
def own_tables():
  yield
  _forget()


@pytest.fixture
def user_dir(own_tables, tmp_path):
  """The file of the documentation."""
  return _user_dir(tmp_path)


def _user_dir(folder):
  _forget()
  path = folder / 'my_scheme.py'
  path.write_text(_blocks()[0])
  return f'--user_dir={path}'


def _blocks() -> list[str]:
  """The Python code of the documentation: the scheme, and its test."""
  text = (ROOT / 'docs' / 'own_scheme.md').read_text()
  return re.findall('```python\n(.*?)```', text, re.DOTALL)


def _main(program: str):
  return importlib.import_module(f'fusion_jax.{program}').main


@pytest.fixture(scope='module')
def workdir(own_tables, tmp_path_factory):
  """Of a training with the scheme."""
  workdir = tmp_path_factory.mktemp('own') / 'run'
  flags = TINY | {
    'data.prepared': workdir.parent / 'prepared',
    'training.steps': 4,
    'training.validate_every': 4,
    'training.translate_sentences': 4,
    # The weights move in the few updates there are.
    'optimizer.schedule': 'constant',
    'optimizer.peak': 0.01,
    'optimizer.warmup_steps': 1,
  }
  given = [f'--config.{name}={value}' for name, value in flags.items()]
  code = _main('cli.train')(
    [
      f'--config={ROOT}/configs/quickstart.py',
      f'--workdir={workdir}',
      _user_dir(workdir.parent),
      *given,
      *_FUSED,
    ]
  )
  assert code == 0
  return workdir


@pytest.mark.extended
def test_it_trains(user_dir, workdir):
  rows = map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines())
  (told,) = [row for row in rows if row['kind'] == 'fusion']
  assert 'encoder/read_out/layer_weights_0' in told
  run_user_dir(user_dir.partition('=')[2])
  run = load_run(workdir)
  logits = run.parameters['encoder']['read_out']['logits']
  assert np.abs(logits).max() > 0.01


@pytest.mark.extended
def test_it_decodes_and_scores(user_dir, workdir, tmp_path):
  (tmp_path / 'in').write_text('the cat\na dog\n')
  decode, out = _main('cli.decode'), tmp_path / 'out'
  common = [f'--workdir={workdir}', f'--input={tmp_path}/in', user_dir]
  assert decode([*common, f'--output={out}']) == 0
  assert len(out.read_text().splitlines()) == 2


@pytest.mark.extended
def test_it_is_exported(user_dir, workdir, tmp_path):
  export = _main('tools.export.__main__')
  flags = '--format=stablehlo', '--shapes=2x16', '--platforms=cpu'
  out = tmp_path / 'out'
  assert (
    export([f'--workdir={workdir}', user_dir, *flags, f'--output={out}']) == 0
  )
  assert (out / 'load.py').exists()


@pytest.mark.extended
def test_it_is_analysed(user_dir, workdir, tmp_path):
  analyse = _main('analysis.__main__')
  given = f'--workdir={workdir}', f'--output={tmp_path}', user_dir
  assert analyse(['layer_weights', *given]) == 0
  numbers = json.loads((tmp_path / 'layer_weights.json').read_text())['numbers']
  parameters = load_run(workdir).parameters
  for side, temperature in ('encoder', 2.0), ('decoder', 1.0):
    seen, logits = numbers[side], parameters[side]['read_out']['logits']
    assert seen['scheme'] == 'weighted_mean'
    assert seen['layers'] == [f'H[{n}]' for n in range(len(logits))]
    assert seen['rows'] == ['output']
    expected = np.exp(np.asarray(logits) / temperature)
    # It is the mean of a float32 sum over all tokens.
    np.testing.assert_allclose(
      seen['weights'], [expected / expected.sum()], rtol=1e-4
    )


def test_it_is_listed(user_dir, monkeypatch, capsys):
  scheme_sizes = importlib.import_module('fusion_jax.tools.scheme_sizes')
  every = scheme_sizes.rows
  monkeypatch.setattr(
    scheme_sizes,
    'rows',
    lambda: [row for row in every() if row.model.name == 'weighted_mean'],
  )
  assert scheme_sizes.main([user_dir]) == 0
  row = capsys.readouterr().out.splitlines()[2]
  assert row.startswith('| `weighted_mean` | this file | layer aggregation | ')
  # A logit for each of H[0..6] of both stacks of a Transformer Base.
  assert ' +14 ' in row


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'leek': 0.5}, "options.leek: no such option; must be 'temperature'"),
    ({'temperature': 'hot'}, 'options.temperature: must be a number, got'),
    ({'temperature': 0.0}, 'options.temperature: must be > 0, got 0.0'),
  ],
)
def test_its_options_are_checked(user_dir, options, message):
  parse_arguments([user_dir], argparse.ArgumentParser())
  with pytest.raises(InputError, match=message):
    ModelConfig(encoder=SideConfig('weighted_mean', options))


@pytest.mark.parametrize(
  ('declared', 'message'),
  [
    ({'options': dict}, 'its options must be a class with fusion_jax'),
    ({'views': ('layer_weight',)}, "did you mean 'layer_weights'"),
  ],
)
def test_what_it_declares_is_checked(declared, message):
  scheme = on_both_sides('x', nn.Module, 'prediction', '')
  # The types of a scheme are checked in tests, but not for a user.
  for field, value in declared.items():
    object.__setattr__(scheme, field, value)
  with pytest.raises(InputError, match=message):
    fusion.register(scheme)
  assert 'x' not in fusion.SCHEMES


@pytest.mark.extended
def test_its_code_has_right_types(tmp_path):
  (tmp_path / 'my_scheme.py').write_text(_blocks()[0])
  flags = (
    f'--cache-dir={tmp_path}',
    f'--python-executable={sys.executable}',
    '--follow-imports=silent',
    '--disallow-untyped-defs',
  )
  checked = subprocess.run(
    [sys.executable, '-m', 'mypy', *flags, 'my_scheme.py'],
    capture_output=True,
    text=True,
    cwd=tmp_path,
    env=os.environ | {'MYPYPATH': str(ROOT)},
  )
  assert checked.returncode == 0, checked.stdout


@pytest.mark.extended
def test_without_its_file_it_is_refused(workdir, capsys):
  _forget()
  assert _main('cli.decode')([f'--workdir={workdir}']) == 2
  message = capsys.readouterr().err
  assert "model.encoder.fusion: must be 'none', " in message
  assert "got 'weighted_mean' (a scheme of your own needs" in message


@pytest.mark.extended
def test_it_passes_the_common_tests(user_dir, monkeypatch):
  path = Path(user_dir.removeprefix('--user_dir='))
  monkeypatch.syspath_prepend(path.parent)
  names: dict = {}
  exec(_blocks()[1], names)
  names['test_my_scheme']()
