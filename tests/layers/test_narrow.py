"""Products of int8 and bfloat16: by hand, bounds, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_jax.layers.narrow import (
  bfloat16_product,
  int8_matrix,
  product,
  rows_of,
)


def test_a_product_of_integers_by_hand():
  # Columns of largest 127 and 254 have scales of 1 and 2; so have the rows.
  matrix = int8_matrix(jnp.array([[127.0, 254.0], [-3.0, 100.0]]), -2)
  np.testing.assert_array_equal(matrix['int8'], [[127, 127], [-3, 50]])
  np.testing.assert_array_equal(matrix['scale'], [1, 2])
  x = jnp.array([[127.0, 2.0], [-254.0, 8.0]])
  # [127 127 - 6, (127 127 + 100) 2] and [-127 127 - 12, (-127 127 + 200) 2] 2.
  expected = [[16_123, 32_458], [-32_282, -63_716]]
  np.testing.assert_array_equal(product(x, matrix), expected)


def test_one_row_is_as_in_a_batch():
  x = jax.random.normal(jax.random.key(0), (5, 16))
  matrix = int8_matrix(jax.random.normal(jax.random.key(1), (16, 7)), -2)
  alone = [jax.jit(product)(row[None], matrix)[0] for row in x]
  np.testing.assert_array_equal(alone, jax.jit(product)(x, matrix))


def test_a_zero_row_and_a_zero_column_give_zeros():
  matrix = int8_matrix(jnp.array([[1.0, 0.0], [2.0, 0.0]]), -2)
  y = product(jnp.array([[0.0, 0.0], [1.0, 1.0]]), matrix)
  np.testing.assert_array_equal(y[0], [0, 0])
  np.testing.assert_allclose(y[1], [3, 0], atol=0.02)


def test_a_table_is_read_by_rows_and_multiplied_transposed():
  table = jax.random.normal(jax.random.key(0), (9, 16))
  narrow = int8_matrix(table, -1)
  ids = jnp.array([[3, 8], [0, 3]])
  half = np.abs(table).max(1, keepdims=True) / 254
  assert (np.abs(rows_of(narrow, ids) - table[ids]) <= half[ids] * 1.001).all()
  x = jax.random.normal(jax.random.key(1), (4, 16))
  np.testing.assert_array_equal(
    product(x, narrow, is_table=True), product(x, int8_matrix(table.T, -2))
  )


@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_error_is_at_most_that_of_the_roundings(seed, size, scale):
  """|x - x'| <= max|x| / 254 and so for W, in every term of the sum."""
  keys = jax.random.split(jax.random.key(seed), 2)
  x = size * np.asarray(jax.random.normal(keys[0], (3, 24)))
  w = scale * np.asarray(jax.random.normal(keys[1], (24, 5)))
  of_x = np.abs(x).max(1, keepdims=True) / 254
  of_w = np.abs(w).max(0, keepdims=True) / 254
  bound = np.abs(x).sum(1, keepdims=True) * of_w + of_x * np.abs(w).sum(0)
  bound += 24 * of_x * of_w
  gap = np.abs(product(jnp.asarray(x), int8_matrix(jnp.asarray(w), -2)) - x @ w)
  assert (gap <= 1.001 * bound).all()


@pytest.mark.parametrize('rows', [1, 6])
def test_bfloat16_rounds_operands_and_sums_in_float32(rows):
  keys = jax.random.split(jax.random.key(rows), 3)
  x, w, g = (
    jax.random.normal(key, shape)
    for key, shape in zip(keys, [(rows, 8), (8, 5), (rows, 5)], strict=True)
  )
  y, backward = jax.vjp(jax.jit(bfloat16_product), x, w)
  by_x, by_w = backward(g)
  x, w, g = (
    np.asarray(array.astype(jnp.bfloat16), np.float64) for array in (x, w, g)
  )
  np.testing.assert_allclose(y, x @ w, atol=1e-5)
  np.testing.assert_allclose(by_x, g @ w.T, atol=1e-5)
  np.testing.assert_allclose(by_w, x.T @ g, atol=1e-5)
