"""Transformers of fairseq as run directories."""

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
from fusion_jax.tools.importers.torch_weights import Record


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  output = tmp_path_factory.mktemp('imported') / 'run'
  assert not import_fairseq(FAIRSEQ, output)
  return output


def test_it_computes_what_fairseq_computes(workdir):
  check_parity(workdir, recorded(FAIRSEQ))


def test_the_decoder_starts_with_the_end_symbol(workdir):
  vocabulary = load_run(workdir).target_tokenizer.vocabulary
  assert (vocabulary.start, vocabulary.end, vocabulary.unknown) == (2, 2, 3)


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
      lambda f: [_line(f, 'word 1\n'), (f / 'dict.de.txt').unlink()],
      'dict.de.txt: missing',
    ),
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


def test_text_that_was_cut_elsewhere_needs_its_model(tmp_path, capsys):
  assert import_model('fairseq', FAIRSEQ, tmp_path / 'run') == 2
  assert 'with --source_spm' in capsys.readouterr().err
