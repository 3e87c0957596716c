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


class _Timed:
  """One kind of product in one direction.

  Attributes:
    seconds: all calls so far.
    gflop: of all calls so far.
  """

  def __init__(self, product: Product, left: int, right: int):
    """left, right: which axis of each operand is contracted."""
    rows, inner, columns = product.rows, product.inner, product.columns
    x_shape, w_shape, y_shape = (rows, inner), (inner, columns), (rows, columns)
    a, b = {
      (1, 0): (x_shape, w_shape),
      (1, 1): (y_shape, w_shape),
      (0, 0): (x_shape, y_shape),
    }[left, right]
    out = (a[1 - left], b[1 - right])
    batched = product.batch > 1
    dims = (
      ((left + batched,), (right + batched,)),
      (((0,), (0,)) if batched else ((), ())),
    )
    self._multiply = jax.jit(
      lambda a, b, out: jax.lax.dot_general(a, b, dims),
      donate_argnums=2,
      keep_unused=True,
    )
    lead = (product.batch,) if batched else ()
    self._a, self._b, self._out = (
      jnp.full(lead + shape, 0.01, jnp.float32) for shape in (a, b, out)
    )
    self._count = product.count
    self._gflop = product.gflop / 3
    self.seconds = self.gflop = 0.0

  def run(self) -> None:
    begin = time.perf_counter()
    out = self._out
    for _ in range(self._count):
      out = self._multiply(self._a, self._b, out)
    self._out = out.block_until_ready()
    self.seconds += time.perf_counter() - begin
    self.gflop += self._gflop


class MatrixProducts:
  """Forward, by the input, by the weight."""

  def __init__(self, size: Size):
    self._timed = {
      f'{product.name}, {direction}': _Timed(product, *axes)
      for product in size.products()
      for direction, axes in (
        ('forward', (1, 0)),
        ('by input', (1, 1)),
        ('by weight', (0, 0)),
      )
    }
    for timed in self._timed.values():
      timed.run()
      timed.seconds = timed.gflop = 0.0

  def step(self) -> None:
    """All products of a step, one after another."""
    for timed in self._timed.values():
      timed.run()

  def report(self) -> dict[str, Any]:
    """Also GFLOP/s of every kind."""
    return {
      'version': f'jax {version("jax")}',
      'gflop_per_second': {
        name: timed.gflop / timed.seconds for name, timed in self._timed.items()
      },
    }


def main() -> None:
  """Serves until stdin ends."""
  serve(MatrixProducts, SIZES[contestant_parser().parse_args().size])


if __name__ == '__main__':
  sys.exit(main())
