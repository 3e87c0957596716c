"""What a training step has to exchange on a mesh, worked out on paper.

Of n devices that exchange an array of b bytes, each sends (n - 1) / n b to
gather it and as much to scatter its sum, and twice that to have the sum on
all. Parameters and gradients are float32, exchanged once an update:

  fsdp    gathers every parameter that is cut over it, and scatters its
          gradient
  data    adds the gradients, of the cut ones a part each; what is not cut is
          added over data and fsdp together
  tensor  cuts heads, the hidden layer and the vocabulary (Shoeybi et al.
          2019). Sums of activations [B, S, D] or [B, T, D] of each part of a
          batch, in a plain Transformer:
            forward   each embedding; the end of each sublayer
            backward  its input: once for each product that reads it, query,
                      key, value, hidden layer; keys and values of the source
                      once for each decoder layer
            loss      the gradient of the features [B, T, D]; of each token
                      the largest logit and three sums over the vocabulary

What else there is are a few numbers: norms of gradients and sums of the loss.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fusion_jax.config import ModelConfig
from fusion_jax.data.batching import Shape
from fusion_jax.parallel.mesh import ROW_AXES
from fusion_jax.tools.aot.hlo_collectives import Collective


class Way(NamedTuple):
  """Between whom what is exchanged how."""

  kind: str
  axes: tuple[str, ...]


class Expected(NamedTuple):
  """An exchange that a layout needs.

  why: in a few words.
  sent: bytes a device in an update.
  """

  why: str
  sent: float


def expected(
  weights: Any, mesh: Mesh, model: ModelConfig, shape: Shape, parts: int
) -> dict[Way, Expected]:
  """All exchanges of an update of a plain Transformer."""
  size = {axis: mesh.shape[axis] for axis in mesh.axis_names}
  rows = tuple(axis for axis in ROW_AXES if size[axis] > 1)
  found: dict[Way, Expected] = {}

  def add(why, kind, axes, whole):
    axes = tuple(axis for axis in axes if size[axis] > 1)
    n = math.prod(size[axis] for axis in axes)
    passes = 2 if kind == 'all-reduce' else 1
    if n > 1:
      before = found.get(Way(kind, axes), Expected(why, 0.0))
      sent = before.sent + passes * (n - 1) / n * whole
      found[Way(kind, axes)] = Expected(why, sent)

  for leaf in jax.tree.leaves(weights):
    axes = [axis for axis in leaf.sharding.spec if axis]
    whole = 4 * math.prod(leaf.shape)
    whole //= size['tensor'] if 'tensor' in axes else 1
    if 'fsdp' in axes:
      add('parameters', 'all-gather', ['fsdp'], whole)
      add('gradients', 'reduce-scatter', ['fsdp'], whole)
      add('gradients', 'all-reduce', ['data'], whole // size['fsdp'])
    else:
      add('gradients', 'all-reduce', rows, whole)
  shards = math.prod(size[axis] for axis in rows)
  one = Shape(shape.rows // shards // parts, shape.source, shape.target)
  activations = parts * _summed_activations(model, one)
  add('activations', 'all-reduce', ['tensor'], activations)
  return found


def _summed_activations(model: ModelConfig, shape: Shape) -> int:
  """Bytes of what tensor adds for one part of one shard's rows."""
  encoder, decoder = model.encoder_layers, model.decoder_layers
  # Embedding; two sublayers forward; query, key, value and hidden layer
  # backward; keys and values of the source.
  source = 1 + encoder * (2 + 4) + 2 * decoder
  # Three sublayers forward; one product more backward, and the loss.
  target = 1 + decoder * (3 + 5) + 1
  numbers = source * shape.source + target * shape.target
  return 4 * shape.rows * (numbers * model.width + 4 * shape.target)


def way(exchange: Collective, mesh: Mesh) -> Way:
  """Between whom a compiled program exchanges something."""
  places = np.unravel_index(exchange.members, tuple(mesh.shape.values()))
  axes = zip(mesh.axis_names, places, strict=True)
  return Way(
    exchange.kind, tuple(axis for axis, own in axes if len(set(own)) > 1)
  )
