"""What a layer reads: the layer below, or sums over all layers below.

Dense connection (Dou et al., EMNLP 2018), dynamic linear combination of layers
(DLCL; Wang et al., ACL 2019), and what the decoder's layers read of the
encoder in transparent attention (Bapna et al., EMNLP 2018).
Axis letters: B batch, T positions, D model width, K layers that are summed, J
layers of the decoder.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from fusion_jax.config import ModelConfig, Side
from fusion_jax.fusion.inputs import Layers, per_layer_norms, weighted_sum
from fusion_jax.layers.context import Context
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.layers import layer_norm
from fusion_jax.layers.sow import sow


def predecessors(size: int, window: int) -> Bool[np.ndarray, '{size} {size}']:
  """True where row l may read column k: k <= l, and l - k < window.

  Args:
    size: L + 1; row l is of what follows layer l, column k of y[k].
    window: the most columns of a row; 0: any.

  Returns:
    The mask.
  """
  row, column = np.indices((size, size))
  return (column <= row) & (row - column < (window or size))


class LayerConnection(nn.Module):
  """Every layer reads the layer below, and the stack's output is H[L]."""

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[Float[Array, 'B T D'], tuple[Any, ...]]:
    """What the next layer reads; after the last layer, the stack's output.

    Args:
      layers: H[0..l-1], what is there before layer l.
      carried: what the call for layer l - 1 returned; () at first.
      context: of the pass.

    Returns:
      The input of layer l, and what the next call needs.
    """
    del context
    return layers[-1], carried

  def layer_output(
    self, layers: Layers, y: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D']:
    """H[l].

    Args:
      layers: H[0..l-1].
      y: what layer l made of its input.

    Returns:
      What `layers` gets next.
    """
    del layers
    return y


class DenseConnection(LayerConnection):
  """H[l] = Layer_l(H[l-1]) + sum_{i=1..l-1} H[i]; Dou et al. (2018), Eq. 4.

  `post_sum_norm` puts a norm after each sum; where there is nothing to add, as
  in layer 1, there is none either.

  Attributes:
    config: of the model.
    side: of the stack.
  """

  config: ModelConfig
  side: Side

  def setup(self):
    options = self.config.side(self.side).dense
    self._start = 0 if options.include_embedding else 1
    numbers = range(self._start + 1, self.config.layers(self.side) + 1)
    if options.post_sum_norm:
      self.sum_norm = {str(n): layer_norm(self.config) for n in numbers}

  def layer_output(
    self, layers: Layers, y: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D']:
    """H[l] from H[0..l-1] and y = Layer_l(H[l-1])."""
    below = layers[self._start :]
    total = sum(below, y)
    if not below or not self.config.side(self.side).dense.post_sum_norm:
      return total
    return self.sum_norm[str(len(layers))](total)


class Dlcl(LayerConnection):
  """Every layer reads a weighted sum of all below it; Wang et al. (2019).

  With y[0] = H[0] and y[l] = Layer_l(x[l]):
  norm='pre': x[l+1] = sum_{k=0..l} w_lk LN_k(y[k]), without a norm on y[0].
  norm='post': x[l+1] = LN_l(sum_{k=0..l} w_lk y[k]), and x[1] = y[0].
  norm='rezero': x[l+1] = sum_{k=0..l} w_lk y[k].
  x[L+1] is the output of the stack.

  The parameter holds the square [L+1, L+1] of all w_lk. Entries that are no
  predecessors (k > l, or outside the window) are never read: they start as 0
  and have no gradient. The same holds for w_00 with norm='post', which starts
  as 1.

  Telemetry: 'weights_l' [K], the weights of what x[l+1] reads; their mean over
  the features where there is one for each.

  Attributes:
    config: of the model.
    side: of the stack.
  """

  config: ModelConfig
  side: Side

  def setup(self):
    config, options = self.config, self.config.side(self.side).dlcl
    size = config.layers(self.side) + 1
    self._read = predecessors(size, options.window)
    vector = options.weights == 'vector'
    self.weights = self.param(
      'weights',
      nn.with_logical_partitioning(
        self._initial, ('layers', None, 'norm') if vector else ('layers', None)
      ),
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
    """The weights of the predecessors of a row."""
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
    """The predecessors of a row; an only one is no sum, and always read."""
    numbers = np.flatnonzero(self._read[row]).tolist()
    if len(numbers) == 1:
      return (carried[numbers[0]],)
    return tuple(context.read_one(k, carried[k]) for k in numbers)

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[Float[Array, 'B T D'], tuple[Any, ...]]:
    """x[l]; `carried` is y[0..l-2] with their norms."""
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


class TransparentAttention(nn.Module):
  """A memory for each layer of the decoder; Bapna et al. (2018).

  memory_j = sum_{i=0..L} softmax_i(dropout(w)_ij) H[i], for j = 1..J, from the
  encoder's H[0..L]. H[0] has a norm of its own where the layers have none
  from `InputNorms`; with norm='rezero' nothing has.

  Telemetry: 'weights' [L+1, J], the softmax without dropout.

  Attributes:
    config: of the model.
    side: 'encoder'.
  """

  config: ModelConfig
  side: Side

  def setup(self):
    config, options = self.config, self.config.side(self.side).transparent
    layers = config.layers(self.side) + 1
    limit = layers**-0.5 if options.weights == 'uniform' else 0.0
    self.weights = self.param(
      'weights',
      nn.with_logical_partitioning(
        lambda key, shape: jax.random.uniform(
          key, shape, minval=-limit, maxval=limit
        ),
        ('layers', None),
      ),
      (layers, config.decoder_layers),
    )
    self.dropout = Dropout(
      options.dropout, config.dropout_generator, rows=False
    )
    own_norm = not per_layer_norms(config, self.side)
    if own_norm and config.norm != 'rezero':
      self.embedding_norm = layer_norm(config)
    else:
      self.embedding_norm = None

  def __call__(
    self, layers: Layers, context: Context
  ) -> Float[Array, 'J B T D']:
    """The memories.

    Args:
      layers: H[0..L] of the encoder.
      context: of the pass.

    Returns:
      The memory of every layer of the decoder, from the first on.
    """
    if self.embedding_norm is not None:
      # The norm of nothing is its offset.
      embedding = context.read_one(0, self.embedding_norm(layers[0]))
      layers = (embedding, *layers[1:])
    sow(self, 'telemetry', 'weights', jax.nn.softmax(self.weights, axis=0))
    weights = self.dropout(self.weights, context.deterministic)
    weights = jax.nn.softmax(weights, axis=0)
    return jax.vmap(weighted_sum, (1, None))(weights, layers)
