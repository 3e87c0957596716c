"""Pipes among the files of an import, which nothing would ever write to."""

import os

import pytest
from recorded import FAIRSEQ, MARIAN, copied, import_model

_FILES = [
  *(('marian', each.name) for each in sorted(MARIAN.iterdir())),
  ('marian', 'generation_config.json'),
  ('marian', 'target_vocab.json'),
  ('marian', 'added_tokens.json'),
  ('marian', 'model.safetensors.index.json'),
  *(('fairseq', each.name) for each in sorted(FAIRSEQ.iterdir())),
]


@pytest.mark.parametrize(('kind', 'name'), _FILES)
def test_a_pipe_is_refused_at_once(tmp_path, capsys, kind, name):
  folder = copied(MARIAN if kind == 'marian' else FAIRSEQ, tmp_path)
  (folder / name).unlink(missing_ok=True)
  os.mkfifo(folder / name)
  spm = folder / 'joint.model'
  flags = [f'--source_spm={spm}'] if kind == 'fairseq' else []
  assert import_model(kind, folder, tmp_path / 'run', *flags) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert f'{folder / name}: a pipe or a device' in line


def test_a_pipe_elsewhere_is_refused_too(tmp_path, capsys):
  pipe = tmp_path / 'pipe'
  os.mkfifo(pipe)
  flag = f'--target_spm={pipe}'
  spm = f'--source_spm={FAIRSEQ / "joint.model"}'
  assert import_model('fairseq', FAIRSEQ, tmp_path / 'run', spm, flag) == 2
  assert f'{pipe}: a pipe' in capsys.readouterr().err
