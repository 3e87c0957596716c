"""Transformers of fairseq as run directories."""

import os
import re

import numpy as np
import pytest
from recorded import (
  FAIRSEQ,
  check_parity,
  copied,
  import_fairseq,
  import_model,
  recorded,
)

from fusion_jax.runs.loading import load_run
from fusion_jax.tools.importers import fairseq, torch_weights
from fusion_jax.tools.importers.torch_weights import Record


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  output = tmp_path_factory.mktemp('imported') / 'run'
  assert not import_fairseq(FAIRSEQ, output)
  return output


def test_it_computes_what_fairseq_computes(workdir):
  check_parity(workdir, recorded(FAIRSEQ))


def test_options_of_omegaconf_are_plain_values():
  from fusion_jax.tools.importers.fairseq import _plain

  node, section = Record(), Record()
  node.update(_val=7, _parent=section)
  section.update(_content={'layers': node}, _parent=None)
  assert _plain({'model': section}) == {'model': {'layers': 7}}


def _line(folder, line):
  with (folder / 'dict.en.txt').open('a') as file:
    file.write(line)


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (
      lambda f: (f / 'checkpoint_best.pt').unlink(),
      'must have checkpoint_best.pt or one other .pt file, has 0',
    ),
    (
      lambda f: (f / 'checkpoint_best.pt').write_bytes(b'x'),
      'not a file of PyTorch, or damaged',
    ),
    (lambda f: (f / 'dict.de.txt').unlink(), 'dict.de.txt: missing'),
    (lambda f: _line(f, 'word\n'), 'must be a piece, a space and a count'),
    (
      lambda f: (f / 'dict.de.txt').write_text('word 1\n'),
      'has no piece of joint.model',
    ),
  ],
)
def test_bad_input_is_one_line_and_writes_nothing(
  tmp_path, capsys, damage, message
):
  folder = copied(FAIRSEQ, tmp_path)
  damage(folder)
  assert import_fairseq(folder, tmp_path / 'run') == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert message in line
  assert {path.name for path in tmp_path.iterdir()} == {'model'}


@pytest.fixture
def saved(monkeypatch):
  """What the checkpoint has; a test may change it."""
  found = torch_weights.read_torch(
    FAIRSEQ / 'checkpoint_best.pt', fairseq._INERT
  )
  found['model'] = dict(found['model'])
  monkeypatch.setattr(torch_weights, 'read_torch', lambda *_: found)
  return found


_OLD_NAMES = {
  'self_attn_layer_norm': {'encoder': 0, 'decoder': 0},
  'encoder_attn_layer_norm': {'decoder': 1},
  'final_layer_norm': {'encoder': 1, 'decoder': 2},
}


def test_a_checkpoint_of_before_2019_is_the_same_model(tmp_path, saved):
  arrays, old = saved['model'], {}
  for name, array in arrays.items():
    side, _, rest = name.partition('.layers.')
    number, _, part = rest.partition('.')
    norm, _, leaf = part.rpartition('.')
    attention, _, projection = norm.rpartition('.')
    if norm in _OLD_NAMES:
      place = _OLD_NAMES[norm][side]
      old[f'{side}.layers.{number}.layer_norms.{place}.{leaf}'] = array
    elif projection in ('q_proj', 'k_proj', 'v_proj'):
      where = f'{side}.layers.{number}.{attention}'
      parts = [arrays[f'{where}.{p}_proj.{leaf}'] for p in 'qkv']
      old[f'{where}.in_proj_{leaf}'] = np.concatenate(parts)
    else:
      old[name] = array
  assert len(old) < len(arrays)
  saved['model'] = old
  assert not import_fairseq(FAIRSEQ, tmp_path / 'run')
  check_parity(tmp_path / 'run', recorded(FAIRSEQ))


def _more_rows(arrays, count):
  tables = fairseq._NAMES.tables
  names = ('source_embedding', 'target_embedding', 'output_table')
  of_pieces = [name for table in names for name in tables[table]]
  for name, array in arrays.items():
    if name in of_pieces:
      rows = np.zeros((max(count, 0), array.shape[1]), array.dtype)
      arrays[name] = np.concatenate([array, rows])[: len(array) + count]


def test_a_table_without_rows_is_one_line(tmp_path, saved, capsys):
  saved['model']['encoder.embed_tokens.weight'] = np.zeros(())
  assert import_fairseq(FAIRSEQ, tmp_path / 'run') == 2
  assert 'has the shape []' in capsys.readouterr().err


@pytest.mark.parametrize('count', [2, -1])
def test_tokens_that_the_dictionary_lacks_are_named(
  tmp_path, saved, capsys, count
):
  _more_rows(saved['model'], count)
  assert import_fairseq(FAIRSEQ, tmp_path / 'run') == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert re.search(r'dict\..*txt with the symbols has', line)


def test_a_line_of_a_dictionary_ends_at_a_line_feed_alone(tmp_path, caplog):
  folder = copied(FAIRSEQ, tmp_path)
  for language in ('en', 'de'):
    path = folder / f'dict.{language}.txt'
    text = path.read_text('utf-8')
    filler = text.splitlines()[-1].split()[0]
    text = text.replace(f'{filler} ', '\u2028 ')
    path.write_bytes(text.replace('\n', '\r\n').encode())
  assert not import_fairseq(folder, tmp_path / 'run')
  run = load_run(tmp_path / 'run')
  assert run.source_tokenizer.id_of('\u2028') is not None


def test_pieces_that_the_dictionary_lacks_are_counted(tmp_path, saved, caplog):
  # The joint model is unigram: its first pieces are the most frequent.
  folder = copied(FAIRSEQ, tmp_path)
  for language in ('en', 'de'):
    path = folder / f'dict.{language}.txt'
    lines = path.read_text('utf-8').splitlines()
    common = lines.pop(0).split()[0]
    path.write_text(''.join(line + '\n' for line in lines), 'utf-8')
  _more_rows(saved['model'], -1)
  assert not import_fairseq(folder, tmp_path / 'run')
  said = caplog.text
  assert f'the most frequent: {common!r}' in said
  assert re.search(r'lacks \d+ pieces that joint.model cuts', said)


def test_text_that_was_cut_elsewhere_needs_its_model(tmp_path, capsys):
  assert import_model('fairseq', FAIRSEQ, tmp_path / 'run') == 2
  assert 'with --source_spm' in capsys.readouterr().err
  os.mkfifo(tmp_path / 'spm')
  flag = f'--source_spm={tmp_path / "spm"}'
  assert import_model('fairseq', FAIRSEQ, tmp_path / 'run', flag) == 2
  assert 'spm: is a folder, a pipe' in capsys.readouterr().err
