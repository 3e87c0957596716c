"""Encodings of positions."""

from math import cos, sin

import jax.numpy as jnp
import numpy as np
import pytest

from fusion_jax.layers.positions import sinusoids


# Vaswani et al. (2017), 3.5, width 4: angles p and p / 10000^(2/4) = p/100.
@pytest.mark.parametrize(
  ('kind', 'row'),
  [
    ('sinusoidal', lambda p: (sin(p), cos(p), sin(p / 100), cos(p / 100))),
    ('marian', lambda p: (sin(p), sin(p / 100), cos(p), cos(p / 100))),
  ],
)
def test_sinusoids_by_hand(kind, row):
  table = sinusoids(jnp.array([0, 1, 7]), 4, kind)
  np.testing.assert_allclose(table, [row(p) for p in (0, 1, 7)], atol=1e-6)


def test_sinusoids_of_a_late_position_stay_accurate():
  row = np.asarray(sinusoids(jnp.array([1000]), 512))[0]
  angle = 1000 * 10_000 ** -(np.arange(0, 512, 2) / 512)
  np.testing.assert_allclose(row[0::2], np.sin(angle), atol=2e-4)


def test_sinusoids_of_fairseq_by_hand():
  # Width 6: three wavelengths, the last of them 10000^(2/2); positions begin
  # at 2.
  table = sinusoids(jnp.array([0, 5]), 6, 'fairseq')
  expected = [
    [f(p / 10_000 ** (i / 2)) for f in (sin, cos) for i in range(3)]
    for p in (2, 7)
  ]
  np.testing.assert_allclose(table, expected, atol=1e-6)
