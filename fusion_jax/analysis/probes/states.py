"""States of all layers at the positions of a text, computed once, and labels.

The label of a position is the token that stands there: in the encoder the
source token, in the decoder the input token. Start and end symbols are no
labels.

Axis letters: B rows, T positions of a row, L layers (H[0..L]), n positions of
the text, D model width, N token ids, V classes.
"""

import math
import os
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fusion_jax.analysis.passes import text_batches, text_shapes, watched
from fusion_jax.analysis.run_with_text import TextPair
from fusion_jax.analysis.view import SIDES
from fusion_jax.config import Side
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Parameters, Transformer

PARTS = 'train', 'stop', 'test'
# Rarer types have no class: the logits of a chunk would become too large.
MOST_CLASSES = 16_384
# Bytes; larger states lie in a temporary file.
_MOST_MEMORY = 2**30


class Classes(NamedTuple):
  """Classes of the probes of one side: types of the training lines.

  Attributes:
    of_token: Class of every id; V if it has none.
    counts: Number of training positions, by class, the largest first.
  """

  of_token: Int[np.ndarray, ' N']
  counts: Int[np.ndarray, ' V']


def split(pairs: Sequence[TextPair]) -> dict[str, list[TextPair]]:
  """Split lines into parts: of every ten, the ninth stops, the tenth tests."""
  parts: dict[str, list[TextPair]] = {name: [] for name in PARTS}
  for pair in pairs:
    place = (pair.line - 1) % 10
    parts[PARTS[max(place - 7, 0)]].append(pair)
  if not all(parts.values()):
    raise InputError(
      f'probes: {len(pairs)} lines are too few; of every ten, eight train, one '
      'stops the training and one tests: give some tens of lines or more'
    )
  return parts


def tokens_of(pairs: Sequence[TextPair], side: Side) -> Int[np.ndarray, ' n']:
  """Return the tokens at all positions, in the order of `layer_states`."""
  return np.concatenate([_ids(pair, side)[:-1] for pair in pairs])


def make_classes(
  counts: Int[np.ndarray, ' N'], most: int = MOST_CLASSES
) -> Classes:
  """Make the classes of a side."""
  order = np.argsort(-counts, kind='stable')[:most]
  order = order[counts[order] > 0]
  of_token = np.full(len(counts), len(order), np.int32)
  of_token[order] = np.arange(len(order))
  return Classes(of_token, counts[order])


def layer_states(
  model: Transformer, parameters: Parameters, pairs: Sequence[TextPair]
) -> dict[Side, Float[np.ndarray, 'L n D']]:
  """Compute H[0..L] of both stacks at all positions of a text."""

  @jax.jit
  def states_of(parameters, batch):
    output, _ = watched(model, parameters, batch)
    both = output.encoder_layers, output.decoder_layers
    return [jnp.stack(layers).astype(jnp.float32) for layers in both]

  config, ends, found = model.config, {}, {}
  for side in SIDES:
    lengths = [len(_ids(pair, side)) - 1 for pair in pairs]
    ends[side] = np.cumsum([0, *lengths])
    shape = config.layers(side) + 1, int(ends[side][-1]), config.width
    found[side] = _room(shape)
  for batch, rows in text_batches(pairs, text_shapes(pairs)):
    both = jax.device_get(states_of(parameters, batch))
    for side, states in zip(SIDES, both, strict=True):
      # The decoder reads a token one position later than it predicts it.
      first = int(side == 'decoder')
      for place, row in enumerate(rows):
        begin, end = ends[side][row : row + 2]
        own = states[:, place, first : first + end - begin]
        found[side][:, begin:end] = own
  return found


def _ids(pair: TextPair, side: Side) -> Int[np.ndarray, ' T']:
  return pair.source if side == 'encoder' else pair.target


def _room(shape: tuple[int, ...]) -> Float[np.ndarray, '...']:
  """Return an array to fill, in a file that nobody else sees if it is large."""
  size = 4 * math.prod(shape)
  if size <= _MOST_MEMORY:
    return np.empty(shape, np.float32)
  try:
    with tempfile.TemporaryFile() as file:
      os.posix_fallocate(file.fileno(), 0, size)
      # The map outlives the closed file.
      return np.memmap(file, np.float32, 'r+', shape=shape)
  except OSError as error:
    raise InputError(
      f'{tempfile.gettempdir()}: no room for {size / 2**30:.1f} GiB of states '
      f'({error.strerror}); give fewer --lines, or another TMPDIR'
    ) from error
