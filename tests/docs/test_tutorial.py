"""The two files that the tutorial tells its readers to save."""

import re

import pytest
from pages import ROOT

from fusion_jax.config.flags import load_config


def _blocks() -> list[str]:
  """The Python files of the tutorial, in order."""
  text = (ROOT / 'docs' / 'tutorial.md').read_text('utf-8')
  return re.findall(r'```python\n(.*?)```', text, re.S)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """An empty folder to work in."""
  monkeypatch.chdir(tmp_path)
  return tmp_path


def test_the_corpus_is_parallel(folder):
  writer, _ = _blocks()
  exec(writer.replace('50_000', '50'), {})
  lines = {
    path.name: path.read_text('utf-8').splitlines()
    for path in folder.glob('corpus/*')
  }
  assert {name: len(text) for name, text in lines.items()} == {
    f'{split}.{language}': pairs
    for split, pairs in (('train', 50), ('valid', 500), ('test', 500))
    for language in ('en', 'fr')
  }
  assert lines['train.en'] != lines['train.fr']


def test_the_config_names_these_files(folder):
  _, config = _blocks()
  (folder / 'mine.py').write_text(config, 'utf-8')
  data = load_config('mine.py').data
  assert data.train == ('corpus/train.{lang}',)
  assert (data.source_language, data.target_language) == ('en', 'fr')
