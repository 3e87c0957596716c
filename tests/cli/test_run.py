"""COMET, with a module in the place of the package."""

import importlib.metadata
import sys
import types

import pytest

from fusion_jax.cli.run import load_comet
from fusion_jax.errors import InputError


class _Comet(types.ModuleType):
  """What is used of the package; the score is the share of equal lines."""

  def __init__(self):
    super().__init__('comet')
    self.loaded = []

  def download_model(self, name):
    if name == 'none':
      raise KeyError("Model 'none' not supported by COMET.")
    return f'/models/{name}'

  def load_from_checkpoint(self, path):
    self.loaded.append(path)
    return self

  def predict(self, rows, batch_size, gpus, progress_bar):
    assert gpus == 0
    right = sum(row['mt'] == row['ref'] != row['src'] for row in rows)
    return types.SimpleNamespace(system_score=right / len(rows))


@pytest.fixture
def package(monkeypatch):
  fake = _Comet()
  monkeypatch.setitem(sys.modules, 'comet', fake)
  monkeypatch.setattr(importlib.metadata, 'version', lambda name: '2.2')
  return fake


def test_the_line_has_signature_and_score(package):
  comet = load_comet('wmt22')
  assert comet(['x', 'y'], ['a', 'b'], ['a', 'c']) == (
    'COMET|nrefs:1|model:wmt22|version:2.2 = 0.5000'
  )
  assert package.loaded == ['/models/wmt22']


def test_a_file_is_not_downloaded(package, tmp_path):
  path = tmp_path / 'model.ckpt'
  path.write_bytes(b'')
  load_comet(str(path))
  assert package.loaded == [str(path)]


def test_a_model_that_is_not_there_is_one_line(package):
  with pytest.raises(InputError, match=r'--comet=none: .*not supported'):
    load_comet('none')


def test_a_missing_package_is_one_line(monkeypatch):
  monkeypatch.setitem(sys.modules, 'comet', None)
  with pytest.raises(
    InputError, match=r'--comet=x: .*pip install unbabel-comet'
  ):
    load_comet('x')
