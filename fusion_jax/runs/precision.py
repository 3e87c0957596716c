"""Parameters whose matrices are int8 or bfloat16, for faster searches."""

import dataclasses
import logging
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array

from fusion_jax.config import ModelConfig
from fusion_jax.layers.narrow import Matrix, int8_matrix, product
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.processes import of_first

logger = logging.getLogger(__name__)

Precision = Literal['float32', 'bfloat16', 'int8']
_TABLES = 'source_embedding', 'target_embedding', 'output_table'


def usable(precision: Precision, option: str = 'precision') -> Precision:
  """Return a precision, or float32 where its products are no faster."""
  # Two machines may measure differently, and must compute the same.
  if precision == 'float32' or of_first(lambda: pays(precision), bool):
    return precision
  logger.warning(
    '%s=%s: this processor multiplies float32 as fast, which is used',
    option,
    precision,
  )
  return 'float32'


def with_usable_products(config: ModelConfig) -> ModelConfig:
  """Return a config whose products are bfloat16 only where that is faster."""
  dtype: Any = usable(config.product_dtype, 'model.product_dtype')
  return dataclasses.replace(config, product_dtype=dtype)


def narrow(
  model: Transformer, parameters: Parameters, precision: Precision
) -> Parameters:
  """Return parameters whose matrices have operands of so many bits.

  Norms, softmax and routing stay float32, as do the sums of products.
  """
  if precision == 'float32':
    return parameters
  matrices = _paths_of_matrices(model)

  def leaf(path: tuple[Any, ...], value: Array) -> Matrix:
    names = tuple(part.key for part in path)
    if names not in matrices:
      return value
    if precision == 'bfloat16':
      return value.astype(jnp.bfloat16)
    return int8_matrix(value, -1 if names[-1] in _TABLES else -2)

  narrowing = jax.jit(lambda tree: jax.tree_util.tree_map_with_path(leaf, tree))
  return narrowing(parameters)


def _paths_of_matrices(model: Transformer) -> set[tuple[str, ...]]:
  """Return the paths of the parameters that `product` multiplies by."""
  paths: set[tuple[str, ...]] = {(name,) for name in _TABLES}

  def note(call, args, kwargs, context):
    if getattr(context.module, 'narrows', False):
      paths.add((*context.module.path, 'kernel'))
    return call(*args, **kwargs)

  ids, lengths = jnp.zeros((1, 2), jnp.int32), jnp.ones((1,), jnp.int32)
  with nn.intercept_methods(note):
    jax.eval_shape(model.init, jax.random.key(0), ids, lengths, ids)
  return paths


# Products of a search, for one sentence and for many, with a matrix that does
# not stay in a core's caches, as those of a whole model do not.
_ROWS, _INPUTS, _OUTPUTS = (4, 64), 512, 8_192
_TRIES = 10
# What they may take of the time of float32, as the mean over both numbers of
# rows; a smaller gain may be chance.
_MOST = 0.85


def pays(precision: Precision) -> bool:
  """Measure whether narrow products are faster on this machine's CPU.

  Accelerators read less memory, which is what their searches wait for.
  """
  if jax.default_backend() != 'cpu':
    return True
  wide = jnp.ones((_INPUTS, _OUTPUTS), jnp.float32)
  slim: Matrix = wide.astype(jnp.bfloat16)
  if precision == 'int8':
    slim = int8_matrix(wide, -2)
  ratios = [_seconds(rows, slim, wide) for rows in _ROWS]
  return statistics.mean(of / to for of, to in ratios) < _MOST


def _seconds(rows: int, *matrices: Matrix) -> list[float]:
  """Return the shortest time of a product with each matrix, tried in turn."""
  multiply: Callable[..., Array] = jax.jit(product)
  x = jnp.ones((rows, _INPUTS), jnp.float32)
  shortest = [math.inf] * len(matrices)
  for _ in range(_TRIES):
    for number, matrix in enumerate(matrices):
      begin = time.perf_counter()
      jax.block_until_ready(multiply(x, matrix))
      seconds = time.perf_counter() - begin
      shortest[number] = min(shortest[number], seconds)
  return shortest
