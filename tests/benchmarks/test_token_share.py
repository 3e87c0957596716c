"""How far an untrained stack tells tokens apart."""

import jax.numpy as jnp
import numpy as np
import pytest

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
