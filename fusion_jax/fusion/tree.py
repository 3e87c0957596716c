"""Aggregation nodes and the trees made of them (Dou et al., EMNLP 2018).

A node fuses layers, and perhaps another node, into one tensor. Iterative
aggregation is a chain of nodes over an unchanged stack; hierarchical
aggregation makes a node of every group of layers and feeds it to the next
group.

Axis letters: B batch, T positions, D model width, I inputs times D, F hidden
width of a node, S keys, N heads, H head width.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from fusion_jax.bounds import Size, SizeOrZero
from fusion_jax.config import ModelConfig
from fusion_jax.config.section import section
from fusion_jax.fusion.inputs import FusionModule, InputNorms, LayerConnection
from fusion_jax.fusion.scheme import on_both_sides
from fusion_jax.layers.attention import (
  attention_weights,
  join_heads,
  key_value,
  split_heads,
)
from fusion_jax.layers.context import Context, Layers, States
from fusion_jax.layers.dense import Dense
from fusion_jax.layers.dropout import Dropout
from fusion_jax.layers.residual import layer_norm
from fusion_jax.layers.sow import sow, wants


@section('model.*.options')
class AggOptions:
  """The aggregation node (Dou 2018, Eq. 7) and the trees made of it."""

  hidden: SizeOrZero = 0
  """Hidden width of the node; 0: model.filter."""

  activation: Literal['sigmoid', 'relu', 'attention'] = 'sigmoid'
  """Activation of the node's feed-forward network; 'attention': multi-head
  attention over the positions takes the place of the network."""

  residual: Literal['all', 'top', 'none'] = 'all'
  """Inputs that are added to the node's output; 'top': the highest layer."""

  zero_out: bool = True
  """Start with W2 = 0, so that the node is the norm of its residual inputs; has
  no effect with residual='none'. False is the paper's start, which trains
  worse: every sigmoid(0) adds half a row of W2."""


@section('model.*.options')
class HierarchicalOptions(AggOptions):
  """Hierarchical aggregation (Dou 2018, section 3.1.1)."""

  group_size: Size = 2
  """Layers of a group."""

  feedback: bool = True
  """Whether the node of a group is the next group's input."""


def exploitation_scores(
  kernel: Float[Array, 'I F'], inputs: int
) -> Float[Array, ' {inputs}']:
  """Return the share s_j of each input in the weights; Dou (2018), Eq. 11.

  s_j = sum |rows of W1 that read input j| / sum |W1|, or 0 where W1 is 0.
  """
  rows = jnp.abs(kernel).reshape(inputs, -1).sum(1)
  return rows / rows.sum().clip(jnp.finfo(rows.dtype).tiny)


def add_residual(y: States, inputs: Layers, top: int, residual: str) -> States:
  """Return y + sum_{j in R} x_j, before the node's norm; Dou (2018), Eq. 7.

  R are 'all' inputs, 'none', or the 'top' one, of index `top`, which is the
  highest layer of the stack.
  """
  chosen = {'all': inputs, 'top': inputs[top : top + 1], 'none': ()}[residual]
  return sum(chosen, y)


def tree_groups(layers: int, size: int) -> dict[int, range]:
  """Return the layers of each node of hierarchical aggregation, by number.

  The L layers make ceil(L / size) groups; the last may be smaller. A first
  group of one layer has no node: G[1] is H[1] then.
  """
  starts = range(1, layers + 1, size)
  groups = (range(n, min(n + size, layers + 1)) for n in starts)
  return {n: group for n, group in enumerate(groups, 1) if group[-1] > 1}


class AggNode(nn.Module):
  """Node AGG(x_1..x_n) = LN(FF([x_1..x_n]) + sum_{j in R} x_j).

  Dou et al. (2018), Eq. 7: FF(z) = sigmoid(z W1 + b1) W2 + b2. With
  activation='attention', multi-head attention over the positions of z replaces
  FF.
  """

  config: ModelConfig
  options: AggOptions

  def setup(self):
    config, options = self.config, self.options
    if options.activation == 'attention':
      inner, bias = 'heads', config.attention_bias
      self.query = self._projection(inner, config.width, bias)
      self.key = self._projection(inner, config.width, bias)
      self.value = self._projection(inner, config.width, bias)
    else:
      inner, bias = 'mlp', True
      self.hidden = self._projection(
        inner, options.hidden or config.filter, bias
      )
    zeros = options.zero_out and options.residual != 'none'
    zero = nn.initializers.zeros_init() if zeros else None
    axes = (inner, 'embed')
    self.out = Dense(config, config.width, axes, bias, zero, zero)
    self.norm = layer_norm(config)
    self.dropout = Dropout(config.dropout, config.dropout_generator)
    self.attention_dropout = Dropout(
      config.attention_dropout, config.dropout_generator
    )

  def _projection(self, inner: str, features: int, bias: bool) -> Dense:
    return Dense(self.config, features, ('embed', inner), bias)

  def __call__(self, inputs: Layers, top: int, context: Context) -> States:
    """Fuse x_1..x_n; `top` is the index of the highest layer of the stack."""
    z = jnp.concatenate(inputs, axis=-1)
    if self.options.activation == 'attention':
      y = self._attend(z, context)
      readers: tuple[Dense, ...] = (self.query, self.key, self.value)
    else:
      activation = getattr(jax.nn, self.options.activation)
      y, readers = self.out(activation(self.hidden(z))), (self.hidden,)
    if wants(self, 'telemetry'):
      self._record_exploitation(readers, len(inputs))
    y = self.dropout(y, context.deterministic)
    return self.norm(add_residual(y, inputs, top, self.options.residual))

  def _attend(self, z: Float[Array, 'B T I'], context: Context) -> States:
    heads = self.config.heads
    new = key_value(self.key(z), self.value(z), heads)
    seen = context.caches.extend(new)
    query = split_heads(self.query(z), heads)
    weights = attention_weights(query, seen.keys, context.mask)
    weights = self.attention_dropout(
      weights.astype(z.dtype), context.deterministic
    )
    attended = jnp.einsum('BNTS,BNSH->BNTH', weights, seen.values)
    return self.out(join_heads(attended))

  def _record_exploitation(
    self, readers: tuple[Dense, ...], inputs: int
  ) -> None:
    kernels = [nn.unbox(part.variables['params']['kernel']) for part in readers]
    scores = exploitation_scores(jnp.concatenate(kernels, axis=1), inputs)
    sow(self, 'telemetry', 'exploitation', scores)


class Iterative(FusionModule):
  """Iterative aggregation of layers; Dou et al. (2018), Eq. 6.

  G[1] = H[1], G[l] = AGG(H[l], G[l-1]) for l = 2..L; the result is G[L].
  """

  def setup(self):
    numbers = range(2, self.config.layers(self.side) + 1)
    self.node = {str(n): AggNode(self.config, self.options) for n in numbers}

  def __call__(self, layers: Layers, context: Context) -> States:
    """Fuse H[1..L] from the lowest to the highest; H[0] is not used.

    Returns:
      G[L]; H[1] where L is 1.
    """
    node = layers[1]
    for number in range(2, len(layers)):
      node = self.node[str(number)]((layers[number], node), 0, context)
    return node


class Hierarchical(LayerConnection):
  """Hierarchical aggregation; Dou et al. (2018), section 3.1.

  With groups of two: G[1] = AGG(H[1], H[2]) and
  G[i] = AGG(H[2i-1], H[2i], G[i-1]). Layer 2i + 1 reads G[i], unless
  feedback=False; every other layer reads the layer below. The stack's output
  is the last node, or H[1] where L is 1.
  """

  def setup(self):
    config, side = self.config, self.side
    options = config.side(side).options
    self.node = {str(n): AggNode(config, options) for n in self._groups}
    layers = range(1, config.layers(side) + 1)
    self.norms = InputNorms(config, side, tuple(layers if self.node else ()))
    nn.share_scope(self, self.norms)

  @property
  def _groups(self) -> dict[int, range]:
    size = self.options.group_size
    return tree_groups(self.config.layers(self.side), size)

  def layer_input(
    self, layers: Layers, carried: tuple[Any, ...], context: Context
  ) -> tuple[States, tuple[Any, ...]]:
    """Return a node made by this call, or the layer below.

    `carried` is the newest node. Without feedback all nodes are made after the
    last layer, and that call may be the only one.
    """
    made = False
    for number in self._due(len(layers) - 1):
      carried = (self._node(number, layers, carried, context),)
      made = True
    return carried[0] if made else layers[-1], carried

  def _due(self, top: int) -> list[int]:
    """Return the numbers of the nodes to make after layer `top`."""
    if self.options.feedback:
      return [n for n, group in self._groups.items() if group[-1] == top]
    return list(self._groups) if top == self.config.layers(self.side) else []

  def _node(
    self, number: int, layers: Layers, below: Layers, context: Context
  ) -> States:
    group = self._groups[number]
    inputs = tuple(self._input(n, layers, context) for n in group)
    if number > 1 and not below:
      below = (self._input(1, layers, context),)
    node = self.node[str(number)]
    return node((*inputs, *below), len(group) - 1, context)

  def _input(self, number: int, layers: Layers, context: Context) -> States:
    """Return a layer as a node reads it."""
    return context.read_one(number, self.norms.one(number, layers[number]))


ITERATIVE = on_both_sides(
  'iterative',
  Iterative,
  'layer aggregation',
  'Dou et al. 2018, Eq. 6-7',
  AggOptions,
)
HIERARCHICAL = on_both_sides(
  'hierarchical',
  Hierarchical,
  'layer connection',
  'Dou et al. 2018, section 3.1.1',
  HierarchicalOptions,
  owns_layer_inputs=lambda options: options.feedback,
  hides_layer_below=lambda options: options.feedback,
)
