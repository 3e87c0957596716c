"""How far an untrained stack tells tokens apart."""

import jax.numpy as jnp
import numpy as np
import pytest
from saved_runs import SavedRun

from benchmarks.token_share import main, shares, token_share
from fusion_jax.config import ModelConfig


@pytest.mark.parametrize(
  ('sentence', 'share'),
  [
    ([[1.0, 2.0], [1.0, 2.0]], 0.0),
    ([[1.0, 2.0], [-1.0, -2.0]], 1.0),
    # The mean is (1/2, 1/2), of squared length 1/2; both states have 1.
    ([[1.0, 0.0], [0.0, 1.0]], 0.5),
  ],
)
def test_the_share_of_known_states(sentence, share):
  np.testing.assert_allclose(token_share(jnp.array([sentence])), share)


def test_sentences_of_other_lengths_and_several_layers():
  # Layer 1: means 0 over two positions and (1, 2) over three; 15 of the 17 that
  # the squares add up to are common. Layer 2: means 0 and (0, 1); 3 of 5 are.
  short = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.0], [-1.0, 0.0]]])
  long = np.array([[[1.0, 2.0]] * 3, [[0.0, 1.0]] * 3])
  np.testing.assert_allclose(token_share([short, long]), [2 / 17, 2 / 5])


def test_the_layers_of_runs(tmp_path, capsys):
  run = SavedRun(tmp_path / 'run')
  run.save({1: None})
  for name, lines in (('a', 'the cat\na dog\n'), ('b', 'cats\nthe mat\n')):
    (tmp_path / name).write_text(lines)
  texts = [f'--source={tmp_path / "a"}', f'--target={tmp_path / "b"}']
  main([*texts, str(run.workdir)])
  _, _, encoder, decoder = capsys.readouterr().out.splitlines()
  assert '| encoder | 0.' in encoder
  assert '| decoder | 0.' in decoder
  with pytest.raises(SystemExit, match='2'):
    main([str(run.workdir)])


def test_smaller_matrices_keep_the_tokens_of_post_norm_apart():
  sizes = {'width': 32, 'filter': 64, 'heads': 2, 'norm': 'post'}
  glorot = shares(ModelConfig(**sizes))
  small = shares(ModelConfig(**sizes, initialization='mlrf'))
  assert all(a < b for a, b in zip(glorot, small, strict=True))


def test_every_model_has_a_row(capsys):
  main(['--layers=1'])
  header, rule, *rows = capsys.readouterr().out.splitlines()
  assert header.startswith('| model |')
  assert rule.startswith('| --- |')
  assert len(rows) == 6
  assert rows[1].startswith('| `norm=post`, `initialization=mlrf` | 0.')
