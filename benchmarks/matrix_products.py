"""The matrix products of a training step and nothing else, as a contestant.

What they alone take is the yardstick of a step: the machine's own rate for
these shapes. Each product writes into the same memory every time, so that
the rate is that of the arithmetic and not that of fresh memory.
"""

import sys
import time
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.serving import contestant_parser, serve
from benchmarks.sizes import SIZES, Product, Size

# Which axis of each operand is contracted.
_DIRECTIONS = {'forward': (1, 0), 'by input': (1, 1), 'by weight': (0, 0)}


class _Timed:
  """One kind of product in one direction.

  Attributes:
    seconds, gflop: of all calls so far.
  """

  def __init__(self, product: Product, left: int, right: int):
    rows, inner, columns = product.rows, product.inner, product.columns
    x_shape, w_shape, y_shape = (rows, inner), (inner, columns), (rows, columns)
    a = y_shape if (left, right) == (1, 1) else x_shape
    b = y_shape if (left, right) == (0, 0) else w_shape
    out = (a[1 - left], b[1 - right])
    lead = (product.batch,) if product.batch > 1 else ()
    contracted = (left + len(lead),), (right + len(lead),)
    dims = contracted, (((0,), (0,)) if lead else ((), ()))
    self._multiply = jax.jit(
      lambda a, b, out: jax.lax.dot_general(a, b, dims),
      donate_argnums=2,
      keep_unused=True,
    )
    self._a, self._b, self._out = (
      jnp.full(lead + shape, 0.01, jnp.float32) for shape in (a, b, out)
    )
    self._count, self._gflop = product.count, product.gflop / 3
    self.run()
    self.seconds = self.gflop = 0.0

  def run(self) -> float:
    begin, out = time.perf_counter(), self._out
    for _ in range(self._count):
      out = self._multiply(self._a, self._b, out)
    self._out = out.block_until_ready()
    return time.perf_counter() - begin

  def step(self) -> None:
    self.seconds += self.run()
    self.gflop += self._gflop


class MatrixProducts:
  """Forward, by the input, by the weight."""

  def __init__(self, size: Size):
    self._timed = {
      f'{product.name}, {direction}': _Timed(product, *axes)
      for product in size.products()
      for direction, axes in _DIRECTIONS.items()
    }

  def step(self) -> None:
    """All products of a step, one after another."""
    for timed in self._timed.values():
      timed.step()

  def report(self) -> dict[str, Any]:
    """Also GFLOP/s of every kind."""
    rates = {name: own.gflop / own.seconds for name, own in self._timed.items()}
    return {'version': f'jax {version("jax")}', 'gflop_per_second': rates}


if __name__ == '__main__':
  sys.exit(serve(MatrixProducts, SIZES[contestant_parser().parse_args().size]))
