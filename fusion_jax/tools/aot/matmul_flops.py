"""Counts of the matrix products of a traced program."""

import math
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr


def product_gflop(program: ClosedJaxpr, trips: int = 1) -> float:
  """Count the needed matrix products in 10^9 floating-point operations.

  A product takes 2mnk operations. Products whose results nothing reads are not
  counted, because XLA drops them. The body of a scan counts as often as it
  runs, that of a shard_map once per shard; of the branches of a conditional
  only the largest counts.

  Args:
    program: Traced program, `jax.jit(f).trace(...).jaxpr`.
    trips: Number of times that the body of each while loop runs.
  """
  jaxpr = program.jaxpr
  needed, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
  return _count(needed, trips) / 1e9


def _count(jaxpr: Jaxpr, trips: int) -> int:
  return sum(_count_one(equation, trips) for equation in jaxpr.eqns)


def _count_one(equation: JaxprEqn, trips: int) -> int:
  name, params = equation.primitive.name, equation.params
  if name == 'dot_general':
    return _product(equation)
  inner = [_count(jaxpr, trips) for jaxpr in jaxprs_in_params(params)]
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


def _product(equation: JaxprEqn) -> int:
  """Return 2 times the elements of the result times the terms of each sum."""
  left: Any = equation.invars[0].aval
  result: Any = equation.outvars[0].aval
  (contracted, _), _ = equation.params['dimension_numbers']
  terms = math.prod(left.shape[axis] for axis in contracted)
  return 2 * result.size * terms
