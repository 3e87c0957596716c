"""The scheme of docs/own_scheme.md: every program works with it."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tiny_run import TINY

from fusion_jax import fusion
from fusion_jax.config import fusion as fusion_options
from fusion_jax.runs.loading import load_run

ROOT = Path(__file__).parents[2]
_FUSED = (
  '--config.model.encoder.fusion=weighted_mean',
  '--config.model.encoder.own=[["temperature", 2.0]]',
  '--config.model.decoder.fusion=weighted_mean',
)


@pytest.fixture(scope='module')
def own_tables():
  """Takes the scheme out of the tables at the end."""
  yield
  fusion._TABLE.pop('weighted_mean', None)
  fusion_options._RULES.pop('weighted_mean', None)


@pytest.fixture
def user_dir(own_tables, tmp_path_factory):
  """The file of the documentation, as if each program started anew."""
  fusion._TABLE.pop('weighted_mean', None)
  fusion_options._RULES.pop('weighted_mean', None)
  path = tmp_path_factory.mktemp('user_dir') / 'my_scheme.py'
  path.write_text(_blocks()[0])
  return f'--user_dir={path}'


def _blocks() -> list[str]:
  """The Python code of the documentation: the scheme, and its test."""
  text = (ROOT / 'docs' / 'own_scheme.md').read_text()
  return re.findall('```python\n(.*?)```', text, re.DOTALL)


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  return tmp_path_factory.mktemp('own') / 'run'


def _main(program: str):
  return importlib.import_module(f'fusion_jax.{program}').main


def test_it_trains(user_dir, workdir):
  flags = TINY | {
    'data.prepared': workdir.parent / 'prepared',
    'training.steps': 4,
    'training.validate_every': 4,
    'training.translate_sentences': 4,
  }
  given = [f'--config.{name}={value}' for name, value in flags.items()]
  code = _main('cli.train')(
    [
      f'--config={ROOT}/configs/quickstart.py',
      f'--workdir={workdir}',
      user_dir,
      *given,
      *_FUSED,
    ]
  )
  assert code == 0
  rows = map(json.loads, (workdir / 'metrics.jsonl').read_text().splitlines())
  (told,) = [row for row in rows if row['kind'] == 'fusion']
  assert 'encoder/read_out/layer_weights_0' in told
  run = load_run(workdir)
  logits = run.parameters['encoder']['read_out']['logits']
  assert np.abs(logits).max() > 0


def test_it_decodes_and_scores(user_dir, workdir, tmp_path):
  (tmp_path / 'in').write_text('the cat\na dog\n')
  decode, out = _main('cli.decode'), tmp_path / 'out'
  common = [f'--workdir={workdir}', f'--input={tmp_path}/in', user_dir]
  assert decode([*common, f'--output={out}']) == 0
  assert len(out.read_text().splitlines()) == 2


def test_it_is_exported(user_dir, workdir, tmp_path):
  export = _main('tools.export.__main__')
  flags = '--format=stablehlo', '--shapes=2x16', '--platforms=cpu'
  out = tmp_path / 'out'
  assert (
    export([f'--workdir={workdir}', user_dir, *flags, f'--output={out}']) == 0
  )
  assert (out / 'load.py').exists()


def test_it_is_analysed(user_dir, workdir, tmp_path):
  analyse = _main('analysis.__main__')
  given = f'--workdir={workdir}', f'--output={tmp_path}', user_dir
  assert analyse(['similarity', *given]) == 0


def test_without_its_file_it_is_refused(own_tables, workdir, capsys):
  fusion._TABLE.pop('weighted_mean', None)
  fusion_options._RULES.pop('weighted_mean', None)
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
