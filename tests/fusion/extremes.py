"""Layers on which norms, gates and routing go wrong first."""

import jax
import numpy as np


def extreme_layers(layers):
  """Named variants of H[0..n]: as they are, tiny, huge, zero, all the same."""
  return {
    'usual': layers,
    'tiny': tuple(1e-6 * layer for layer in layers),
    'huge': tuple(1e3 * layer for layer in layers),
    'zero': tuple(0 * layer for layer in layers),
    'same': layers[:1] * len(layers),
  }


def assert_finite(tree):
  for leaf in jax.tree.leaves(tree):
    assert np.isfinite(np.asarray(leaf, np.float32)).all()
