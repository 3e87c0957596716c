"""Matrices in eight or sixteen bits, and products with them.

A matrix of bfloat16 is an array. One of int8 is a table of 'int8', the rounded
values, and 'scale', one for each output: W = int8 * scale. A product rounds
each row of x in the same way,

    x W = (round(x / s) int8) * s * scale,  s = max |x| / 127,

and its sums of integers are exact. Accelerators, whose searches wait for the
memory, read the integers and multiply in bfloat16.

Axis letters: I inputs, O outputs.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Float32, Int, Int8

Matrix = Float[Array, '...'] | Mapping[str, Array]

# The largest int8 in use; -128 is not, so that both signs are alike.
_LARGEST = 127
_BY_ROWS = Layout(major_to_minor=(0, 1))


def rounded(
  x: Float[Array, '...'], axis: int
) -> tuple[Int8[Array, '...'], Float32[Array, '...']]:
  """Return x as int8, and a scale for each slice along an axis, of size 1."""
  x = x.astype(jnp.float32)
  largest = jnp.abs(x).max(axis, keepdims=True)
  scale = jnp.where(largest > 0, largest, 1) / _LARGEST
  return jnp.round(x / scale).astype(jnp.int8), scale


def int8_matrix(matrix: Float[Array, '...'], axis: int) -> Mapping[str, Array]:
  """Return a matrix, or a stack of them, as int8 with a scale for each output.

  Args:
    axis: Axis of the inputs, over which products sum: -2, or -1 of a table.
  """
  values, scale = rounded(matrix, axis)
  return {'int8': values, 'scale': jnp.squeeze(scale, axis)}


def matrices_of(stack: Matrix) -> list[Matrix]:
  """Return the matrices of a stack [L, I, O].

  The gradients of the pieces of a split are concatenated, not added.
  """
  leaves, structure = jax.tree.flatten(stack)
  pieces = zip(*(jnp.split(x, len(x)) for x in leaves), strict=True)
  return [
    jax.tree.unflatten(structure, [x[0] for x in piece]) for piece in pieces
  ]


def rows_of(table: Matrix, ids: Int[Array, '...']) -> Float[Array, '... I']:
  """Look rows of a table [O, I] up, in float32."""
  if not isinstance(table, Mapping):
    return table[ids].astype(jnp.float32)
  return table['int8'][ids] * table['scale'][ids][..., None]


def product(
  x: Float[Array, '*batch I'],
  matrix: Matrix,
  is_table: bool = False,
  dtype: Any = None,
  bfloat16: bool = False,
) -> Float[Array, '*batch O']:
  """Multiply x by a matrix [I, O], or by the rows of a table [O, I].

  Args:
    dtype: Of the result; None: that of x.
    bfloat16: Whether a float32 matrix and x are rounded to it.
  """
  if bfloat16 and x.dtype == jnp.float32 and not isinstance(matrix, Mapping):
    y = bfloat16_product(x.reshape(-1, x.shape[-1]), matrix)
    return y.reshape(*x.shape[:-1], -1)
  over = ((x.ndim - 1,), (1 if is_table else 0,)), ((), ())
  dtype = dtype or x.dtype
  if isinstance(matrix, Mapping):
    y = jax.lax.platform_dependent(
      x, matrix, cpu=_of_integers(over), default=_of_bfloat16(over)
    )
    return y.astype(dtype)
  if matrix.dtype == jnp.bfloat16:
    y = _of_two_rows(
      x.astype(jnp.bfloat16), matrix, over, preferred_element_type=jnp.float32
    )
    return y.astype(dtype)
  return jax.lax.dot_general(
    x, matrix.astype(x.dtype), over, preferred_element_type=dtype
  )


def _of_two_rows(x, matrix, over, **options):
  """Multiply narrow operands; XLA multiplies two rows faster than one."""
  alone = x.size == x.shape[-1]
  rows = jnp.repeat(x, 2, 0) if alone else x
  y = jax.lax.dot_general(rows, matrix, over, **options)
  return y[:1] if alone else y


@jax.custom_vjp
def bfloat16_product(
  x: Float32[Array, 'M I'], matrix: Float32[Array, 'I O']
) -> Float32[Array, 'M O']:
  """Return x W from operands rounded to bfloat16, summed in float32.

  So are its gradients by x and by W.
  """
  return _bfloat16_forward(x, matrix)[0]


def _bfloat16_forward(x, matrix):
  operands = x.astype(jnp.bfloat16), matrix.astype(jnp.bfloat16)
  return _matrix_product(*operands), operands


def _bfloat16_backward(operands, gradient):
  x, matrix = operands
  gradient = gradient.astype(jnp.bfloat16)
  by_x = jax.lax.dot_general(
    gradient,
    matrix,
    (((1,), (1,)), ((), ())),
    preferred_element_type=jnp.float32,
  )
  return by_x, _sum_of_outer_products(x, gradient)


bfloat16_product.defvjp(_bfloat16_forward, _bfloat16_backward)


def _sum_of_outer_products(
  x: Float[Array, 'M I'], y: Float[Array, 'M O']
) -> Float32[Array, 'I O']:
  """Return x^T y, summed in float32.

  XLA's CPU backend is four times as fast where x^T lies row by row in memory.
  """
  rows = jax.lax.platform_dependent(
    x.T, cpu=lambda t: with_layout_constraint(t, _BY_ROWS), default=lambda t: t
  )
  return _matrix_product(rows, y)


def _matrix_product(a, b):
  return jax.lax.dot_general(
    a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
  )


def _of_integers(over):
  def multiply(x, matrix):
    values, scale = rounded(x, -1)
    sums = _of_two_rows(
      values, matrix['int8'], over, preferred_element_type=jnp.int32
    )
    return sums * scale * matrix['scale']

  return multiply


def _of_bfloat16(over):
  def multiply(x, matrix):
    sums = jax.lax.dot_general(
      x.astype(jnp.bfloat16),
      matrix['int8'].astype(jnp.bfloat16),
      over,
      preferred_element_type=jnp.float32,
    )
    return sums * matrix['scale']

  return multiply
