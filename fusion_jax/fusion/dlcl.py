"""Sums of the layers below as inputs.

Dense connection, Dou et al. (EMNLP 2018); dynamic linear combination of layers
(DLCL), Wang et al. (ACL 2019); depth-weighted averages, Pagliardini et al.
(2024).

Axis letters: B batch, T positions, D model width, K layers that are summed.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from fusion_jax.bounds import Depth, SizeOrZero
from fusion_jax.config import ModelConfig, Side
from fusion_jax.config.section import section
from fusion_jax.errors import require
from fusion_jax.fusion.inputs import LayerConnection, weighted_sum
from fusion_jax.fusion.scheme import all_layers, always, on_both_sides
from fusion_jax.layers.context import Context, Layers, States
from fusion_jax.layers.dense import parameter
from fusion_jax.layers.residual import layer_norm
from fusion_jax.layers.sow import sow


@section('model.*.options')
class DlclOptions:
  """Dynamic linear combination of layers (Wang et al. 2019).

  norms='none' with start='top' is the depth-weighted averaging of DenseFormer
  (Pagliardini et al. 2024), which also has dilation and period.
  """

  start: Literal['average', 'one', 'top'] = 'average'
  """Weights at the start: the mean of the predecessors; all 1; or 1 for the
  layer below and 0 for the others ('top'), which without norms is the plain
  model."""

  first: Literal['fixed', 'learned'] = 'fixed'
  """What the first layer of a post-norm stack reads. 'fixed': H[0]; 'learned':
  w H[0] with a learned w that starts as 1, as in the released code. With
  pre-norm w is always learned."""

  norms: Literal['auto', 'none'] = 'auto'
  """Norms of the layers or of their sums; 'auto': as model.norm says, see
  Dlcl."""

  window: SizeOrZero = 0
  """Number of predecessors that are read; 0: all."""

  dilation: Depth = 1
  """Of the predecessors, read only each dilation-th, from the layer below
  downwards."""

  period: Depth = 1
  """Sum only after each period-th layer; the others read the layer below.
  Number of layers: only what follows the stack is a sum."""

  frozen: bool = False
  """Keep the weights as they start."""


def predecessors(
  size: int, window: int = 0, dilation: int = 1, period: int = 1
) -> Bool[np.ndarray, '{size} {size}']:
  """Return a mask, True where row l, what follows layer l, reads y[k].

  That is where k <= l, l - k < window, if there is one, and dilation divides
  l - k; a row that period does not divide reads k = l alone.
  """
  row, column = np.indices((size, size))
  near = (column <= row) & (row - column < (window or size))
  return near & ((row - column) % np.where(row % period, size, dilation) == 0)


class Dlcl(LayerConnection):
  """Weighted sums of all layers below as inputs; Wang et al. (2019).

  With y[0] = H[0] and y[l] = Layer_l(x[l]):
  norm='pre': x[l+1] = sum_{k=0..l} w_lk LN_k(y[k]), without a norm on y[0].
  norm='post': x[l+1] = LN_l(sum_{k=0..l} w_lk y[k]), and x[1] = y[0]; with
  first='learned' x[1] = w_00 y[0], as in the released code.
  norm='rezero': x[l+1] = sum_{k=0..l} w_lk y[k].
  norms='none': the same with any norm, and x[1] = y[0]; Pagliardini et al.
  (2024), section 3. x[L+1] is the output of the stack.

  With a period, x[l+1] = y[l] where it does not divide l.

  The parameter holds the square [L+1, L+1] of all w_lk. Entries that belong to
  no predecessor are never read: they start as 0 and have no gradient. Those of
  a row that is no sum are never read either, but w_ll starts as 1; with
  norm='post' or norms='none', row 0 is none, but for first='learned'.

  Telemetry: 'weights_l' [K], the weights of the terms of x[l+1].
  """

  def setup(self):
    config, options = self.config, self.options
    size = config.layers(self.side) + 1
    self._read = predecessors(
      size, options.window, options.dilation, options.period
    )
    axes = 'layers', None
    self.weights = parameter(self, 'weights', self._initial, axes, (size, size))
    self._norm = config.norm if options.norms == 'auto' else 'none'
    self.norm = {str(n): layer_norm(config) for n in self._normed(size)}

  def _is_sum(self, row: int) -> bool:
    options = self.options
    fixed = self._norm == 'post' and options.first == 'fixed'
    plain_first = fixed or self._norm == 'none'
    return row % options.period == 0 and not (row == 0 and plain_first)

  def _normed(self, size: int) -> list[int]:
    """Return the numbers of the layers, or of the sums, that have norms."""
    sums = [row for row in range(size) if self._is_sum(row)]
    if self._norm == 'pre':
      return [n for n in range(1, size) if self._read[sums, n].any()]
    return [n for n in sums if n > 0] if self._norm == 'post' else []

  def _initial(self, key: Array, shape: tuple[int, int]) -> Array:
    start = self.options.start
    if start == 'top':
      return jnp.eye(*shape)
    weights = self._read.astype(np.float32)
    return jnp.asarray(
      weights / weights.sum(1, keepdims=True) if start == 'average' else weights
    )

  def _sum(self, row: int, carried: Layers, context: Context) -> States:
    """Return the sum of the predecessors of a row, after any ablation.

    A single predecessor is no sum, so that it is never ablated.
    """
    weights = self.weights[row, self._read[row]]
    if self.options.frozen:
      weights = jax.lax.stop_gradient(weights)
    sow(self, 'telemetry', f'weights_{row}', weights)
    numbers = np.flatnonzero(self._read[row]).tolist()
    if len(numbers) == 1:
      return weighted_sum(weights, (carried[numbers[0]],))
    read = tuple(context.read_one(k, carried[k]) for k in numbers)
    return weighted_sum(weights, read)

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[States, tuple[Any, ...]]:
    """Return x[l]; `carried` is y[0..l-2] after their norms."""
    row, x = len(layers) - 1, layers[-1]
    norm = self.norm.get(str(row))
    if norm is not None and self._norm == 'pre':
      x = norm(x)
    carried = (*carried, x)
    if not self._is_sum(row):
      return layers[-1], carried
    x = self._sum(row, carried, context)
    if norm is not None and self._norm == 'post':
      x = norm(x)
    return x, carried


def _check(config: ModelConfig, side: Side) -> None:
  options, path = config.side(side).options, f'model.{side}.options'
  layers = config.layers(side)
  for field in ('dilation', 'period'):
    value = getattr(options, field)
    require(
      value <= layers,
      f'{path}.{field}',
      f'{value} leaves nothing to sum in {layers} layers; at most {layers}',
    )
  others = {
    'model.norm': (config.norm, 'post'),
    f'{path}.norms': (options.norms, 'auto'),
  }
  for other, (value, needed) in others.items():
    require(
      options.first == 'fixed' or value == needed,
      f'{path}.first',
      f'{options.first!r} has no effect with {other}={value!r}; leave it out',
    )


def _starts_as_identity(config: ModelConfig, side: Side) -> bool:
  options = config.side(side).options
  without_norms = options.norms == 'none' or config.norm == 'rezero'
  return options.start == 'top' and without_norms


DLCL = on_both_sides(
  'dlcl',
  Dlcl,
  'layer connection',
  'Wang et al. 2019, Eq. 5-7',
  DlclOptions,
  check=_check,
  owns_layer_inputs=always,
  hides_layer_below=always,
  layers_read=all_layers,
  starts_as_identity=_starts_as_identity,
)


class DenseConnection(LayerConnection):
  """Dense connection; Dou et al. (2018), Eq. 4.

  H[l] = Layer_l(H[l-1]) + sum_{i=1..l-1} H[i].
  """

  def layer_output(self, layers: Layers, y: States) -> States:
    """Return H[l], given H[0..l-1] and y = Layer_l(H[l-1])."""
    return sum(layers[1:], y)


def _layers_read(config: ModelConfig, side: Side) -> tuple[int, ...]:
  return tuple(range(1, config.layers(side)))


DENSE = on_both_sides(
  'dense',
  DenseConnection,
  'layer connection',
  'Dou et al. 2018, Eq. 4',
  layers_read=_layers_read,
  owns_layer_inputs=always,
)
