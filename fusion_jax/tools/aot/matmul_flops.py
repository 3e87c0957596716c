"""Counts of the matrix products, or multiplications, of a traced program."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

# What an equation without a body counts.
_Leaf: TypeAlias = Callable[[JaxprEqn], int]


def product_gflop(program: ClosedJaxpr, trips: int = 1) -> float:
  """Count the needed matrix products in 10^9 floating-point operations.

  A product takes 2mnk operations. Products whose results nothing reads are not
  counted, because XLA drops them. The body of a scan counts as often as it
  runs, that of a shard_map once per shard; of the branches of a conditional
  only the largest counts.
  """
  return 2 * _count(_needed(program), trips, _product) / 1e9


def multiplications(program: ClosedJaxpr) -> int:
  """Count the needed multiplications of floating-point numbers.

  They are those of matrix products, mnk, and of arrays with arrays, a square
  among them; what divides, takes roots or exponentials is not counted.
  """
  return _count(_needed(program), 0, _multiplications)


def _needed(program: ClosedJaxpr) -> Jaxpr:
  jaxpr = program.jaxpr
  return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def _count(jaxpr: Jaxpr, trips: int, leaf: _Leaf) -> int:
  return sum(_count_one(equation, trips, leaf) for equation in jaxpr.eqns)


def _count_one(equation: JaxprEqn, trips: int, leaf: _Leaf) -> int:
  name, params = equation.primitive.name, equation.params
  inner = [_count(jaxpr, trips, leaf) for jaxpr in jaxprs_in_params(params)]
  if not inner:
    return leaf(equation)
  if name == 'cond':
    return max(inner)
  if name == 'shard_map':
    return _shards(params) * sum(inner)
  times = {'scan': params.get('length', 1), 'while': trips}
  return times.get(name, 1) * sum(inner)


def _shards(params: dict[str, Any]) -> int:
  """Return how many shards of a shard_map make up the whole."""
  sizes = params['mesh'].shape
  # jax 0.10 uses newly_manual_axes, other versions manual_axes.
  (axes,) = (params[x] for x in params if x.endswith('manual_axes'))
  return math.prod(sizes[axis] for axis in axes)


def _multiplications(equation: JaxprEqn) -> int:
  result: Any = equation.outvars[0].aval
  by_element = equation.primitive.name in ('mul', 'square')
  if by_element and jnp.issubdtype(result.dtype, jnp.floating):
    return result.size
  return _product(equation)


def _product(equation: JaxprEqn) -> int:
  """Return the elements of a product times the terms of each sum."""
  if equation.primitive.name != 'dot_general':
    return 0
  left: Any = equation.invars[0].aval
  result: Any = equation.outvars[0].aval
  (contracted, _), _ = equation.params['dimension_numbers']
  terms = math.prod(left.shape[axis] for axis in contracted)
  return result.size * terms
