"""Windows of lines, padded rows, and batches on their way to the device."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int32

from fusion_jax.decoding.shapes import (
  DecodeShape,
  PlannedBatch,
  plan_batches,
  shard_batches,
)
from fusion_jax.errors import InputError
from fusion_jax.parallel.mesh import by_rows

# A window has the slots of this number of batches, enough for sorting to pay.
# The first windows are smaller, so that the first lines are written soon. The
# number of items is bounded too, because each costs memory however short it is.
_FIRST_WINDOW, _WINDOW_BATCHES, _WINDOW_ITEMS = 4, 64, 32_768

Item = TypeVar('Item')


def windows(
  items: Iterable[tuple[Item, int]],
  batch_slots: int,
  batches: int = _WINDOW_BATCHES,
) -> Iterator[list[Item]]:
  """Cut a stream into windows that are held in memory one at a time."""
  window: list[Item] = []
  slots, now = 0, min(_FIRST_WINDOW, batches)
  wrong: list[InputError] = []
  for item, size in _until_wrong(items, wrong):
    window.append(item)
    slots += 1 + size
    if slots >= now * batch_slots or len(window) == _WINDOW_ITEMS:
      yield window
      window, slots, now = [], 0, min(2 * now, batches)
  if window:
    yield window
  for error in wrong:
    raise error


def _until_wrong(
  items: Iterable[Item], wrong: list[InputError]
) -> Iterator[Item]:
  """Yield the items before an InputError, which is appended to `wrong`."""
  try:
    yield from items
  except InputError as error:
    wrong.append(error)


def padded(
  sequences: list[list[int]], rows: int, length: int, end_id: int
) -> tuple[Int32[np.ndarray, '{rows} {length}'], Int32[np.ndarray, ' {rows}']]:
  """Return the ids and lengths of a batch; spare rows hold one end symbol."""
  ids = np.zeros((rows, length), np.int32)
  ids[:, 0] = end_id
  lengths = np.ones(rows, np.int32)
  for row, sequence in enumerate(sequences):
    ids[row, : len(sequence)] = sequence
    lengths[row] = len(sequence)
  return ids, lengths


def pad_values(
  values: Iterable[int], rows: int, spare: int
) -> Int32[np.ndarray, ' {rows}']:
  """Return one value for each row, and `spare` for rows beyond them."""
  padded = np.full(rows, spare, np.int32)
  own = list(values)
  padded[: len(own)] = own
  return padded


def own_batches(
  lengths: Sequence[int], shapes: Sequence[DecodeShape]
) -> Iterator[PlannedBatch]:
  """Yield this process's share of the batches of `plan_batches`."""
  return shard_batches(
    plan_batches(lengths, shapes), jax.process_count(), jax.process_index()
  )


def device_put_rows(batch: Item, mesh: Mesh) -> Item:
  """Distribute rows over the devices."""
  own = mesh.local_mesh.size

  def put(rows: np.ndarray) -> jax.Array:
    spare = -len(rows) % own
    even = np.pad(rows, [(0, spare), *[(0, 0)] * (rows.ndim - 1)], 'edge')
    return jax.make_array_from_process_local_data(by_rows(mesh), even)

  return jax.tree.map(put, batch)


def device_get_rows(found: Item) -> Item:
  """Copy this process's rows to the host, with spare ones at the end."""

  def parts(rows: jax.Array) -> list[jax.Array]:
    shards = rows.addressable_shards
    shards = sorted(shards, key=lambda shard: shard.index[0].start or 0)
    return [shard.data for shard in shards]

  own = jax.device_get(jax.tree.map(parts, found))
  return jax.tree.map(
    np.concatenate, own, is_leaf=lambda part: isinstance(part, list)
  )


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
  """Yield the items, each after the next one has been made.

  The device then works on the next batch while the host reads the last one.
  """
  held: list[Item] = []
  for item in items:
    held.append(item)
    if len(held) > 1:
      yield held.pop(0)
  yield from held
