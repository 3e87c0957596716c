"""Dynamic linear combination of layers (DLCL); Wang et al. (ACL 2019).

Axis letters: B batch, T positions, D model width, K layers that are summed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fusion_jax.config import ModelConfig, Side, SideConfig
from fusion_jax.fusion.connection import LayerConnection
from fusion_jax.fusion.inputs import Layers, weighted_sum
from fusion_jax.fusion.scheme import BASE, PaperSize, all_layers, on_both_sides
from fusion_jax.layers.context import Context
from fusion_jax.layers.parameter import parameter
from fusion_jax.layers.residual import layer_norm
from fusion_jax.layers.sow import sow


def predecessors(size: int, window: int) -> Bool[np.ndarray, '{size} {size}']:
  """Return a mask, True where row l may read column k.

  That is where k <= l and l - k < window.

  Args:
    size: Rows and columns, L + 1. Row l stands for what follows layer l,
      column k for y[k].
    window: Largest number of columns that a row reads; 0: no limit.
  """
  row, column = np.indices((size, size))
  return (column <= row) & (row - column < (window or size))


class Dlcl(LayerConnection):
  """Weighted sums of all layers below as inputs; Wang et al. (2019).

  With y[0] = H[0] and y[l] = Layer_l(x[l]):
  norm='pre': x[l+1] = sum_{k=0..l} w_lk LN_k(y[k]), without a norm on y[0].
  norm='post': x[l+1] = LN_l(sum_{k=0..l} w_lk y[k]), and x[1] = y[0].
  norm='rezero': x[l+1] = sum_{k=0..l} w_lk y[k].
  x[L+1] is the output of the stack.

  The parameter holds the square [L+1, L+1] of all w_lk. Entries that belong to
  no predecessor (k > l, or outside the window) are never read: they start as 0
  and have no gradient. With norm='post', w_00 is never read either, but starts
  as 1.

  Telemetry: 'weights_l' [K], the weights of the terms of x[l+1]; with a weight
  for each feature, their mean over the features.

  Attributes:
    config: Model configuration.
    side: Side of the stack.
  """

  config: ModelConfig
  side: Side

  def setup(self):
    config, options = self.config, self.config.side(self.side).dlcl
    size = config.layers(self.side) + 1
    self._read = predecessors(size, options.window)
    vector = options.weights == 'vector'
    self.weights = parameter(
      self,
      'weights',
      self._initial,
      ('layers', None, 'norm') if vector else ('layers', None),
      (size, size, config.width) if vector else (size, size),
    )
    if config.norm != 'rezero':
      self.norm = {str(n): layer_norm(config) for n in range(1, size)}

  def _initial(self, key: Array, shape: tuple[int, ...]) -> Array:
    del key
    weights = np.float32(self._read)
    if self.config.side(self.side).dlcl.start == 'average':
      weights /= weights.sum(1, keepdims=True)
    return jnp.broadcast_to(weights.T, shape[::-1]).T

  def _row(self, row: int) -> Float[Array, 'K *D']:
    """Return the weights of the predecessors of a row."""
    options = self.config.side(self.side).dlcl
    weights = self.weights[row, self._read[row]]
    if options.frozen:
      weights = jax.lax.stop_gradient(weights)
    if options.normalize == 'softmax':
      weights = jax.nn.softmax(weights, axis=0)
    sow(
      self,
      'telemetry',
      f'weights_{row}',
      weights.reshape(len(weights), -1).mean(1),
    )
    return weights

  def _summed(self, row: int, carried: Layers, context: Context) -> Layers:
    """Return the predecessors of a row, after any ablation.

    A single predecessor is no sum, so that it is never ablated.
    """
    numbers = np.flatnonzero(self._read[row]).tolist()
    if len(numbers) == 1:
      return (carried[numbers[0]],)
    return tuple(context.read_one(k, carried[k]) for k in numbers)

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[Float[Array, 'B T D'], tuple[Any, ...]]:
    """Return x[l]; `carried` is y[0..l-2] after their norms."""
    row, x, norm = len(layers) - 1, layers[-1], self.config.norm
    if row > 0 and norm == 'pre':
      x = self.norm[str(row)](x)
    carried = (*carried, x)
    if row == 0 and norm == 'post':
      return x, carried
    read = self._summed(row, carried, context)
    x = weighted_sum(self._row(row), read)
    if norm == 'post':
      x = self.norm[str(row)](x)
    return x, carried


_SIDE = SideConfig('dlcl')

SCHEME = on_both_sides(
  'dlcl',
  Dlcl,
  'layer connection',
  'Wang et al. 2019, Eq. 5-7',
  'dlcl',
  layers_read=all_layers,
  sizes=(PaperSize('dlcl', _SIDE, _SIDE, None, BASE),),
)
