"""A run directory holds its validation text, and nothing else is read."""

import builtins
import dataclasses

import pytest
from saved_runs import SavedRun

from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.text_choice import TextChoice
from fusion_jax.config import DataConfig
from fusion_jax.config.flags import load_config
from fusion_jax.config.presets import changed
from fusion_jax.data.prepare import prepare
from fusion_jax.errors import InputError
from fusion_jax.runs.kept_corpus import (
  copy_corpus,
  read_validation,
  write_corpus,
)
from fusion_jax.runs.loading import load_run


def test_what_is_written_is_read(tmp_path):
  config = changed(
    load_config('configs/quickstart.py'),
    {
      'data.embedded_pairs': 300,
      'data.tokenizer.vocabulary_size': 250,
      'data.prepared': str(tmp_path / 'prepared'),
    },
  )
  corpus = prepare(config.data)
  (tmp_path / 'run').mkdir()
  (tmp_path / 'mean').mkdir()
  write_corpus(tmp_path / 'run', corpus)
  copy_corpus(tmp_path / 'run', tmp_path / 'mean')
  (direction,) = config.data.all_directions
  texts = corpus.split('valid', direction.name).texts()
  for name in ('run', 'mean'):
    found = list(read_validation(tmp_path / name, direction.name))
    assert found == list(zip(*texts, strict=True))
  assert len(found) > 5


def test_a_run_from_elsewhere_has_no_file_read(tmp_path, monkeypatch):
  (tmp_path / 'secret.en').write_text('password')
  (tmp_path / 'secret.de').write_text('Kennwort')
  own = SavedRun(tmp_path / 'run')
  own.save({30: None})
  run = load_run(own.workdir)
  data = DataConfig(valid=(str(tmp_path / 'secret.{lang}'),))
  config = dataclasses.replace(run.config, data=data)
  run = dataclasses.replace(run, config=config)
  analysed = RunWithText(own.workdir, run, TextChoice())
  monkeypatch.setattr(builtins, 'open', lambda *_: 1 / 0)
  with pytest.raises(InputError, match='holds no validation text of en-de'):
    _ = analysed.lines


def test_a_direction_is_no_path(tmp_path):
  (tmp_path / 'run').mkdir()
  (tmp_path / 'x-y.source').write_text('secret')
  (tmp_path / 'x-y.target').write_text('secret')
  with pytest.raises(InputError, match='is no name of a direction'):
    list(read_validation(tmp_path / 'run', '../../x-y'))
