"""What lies between lines and the device: windows, rows, the next batch."""

import itertools
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

# Slots of a window in batches: enough for sorting to pay. The first windows
# are smaller, so that what is read first is written soon. The number of items
# is bounded too, as each costs memory however short it is.
_FIRST_WINDOW, _WINDOW_BATCHES, _WINDOW_ITEMS = 4, 64, 32_768

Item = TypeVar('Item')


def windows(
  items: Iterable[tuple[Item, int]],
  batch_slots: int,
  batches: int = _WINDOW_BATCHES,
) -> Iterator[list[Item]]:
  """Cuts a stream into windows that are held in memory one at a time.

  Args:
    items: each with the slots it takes.
    batch_slots: of a batch.
    batches: a window has the slots of that number of batches, the first one
      of a few, and none more than 32,768 items.

  Yields:
    The items, in order.

  Raises:
    InputError: what `items` raises, after the items before it.
  """
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
  """The items before one that is refused; the refusal is put in a list."""
  try:
    yield from items
  except InputError as error:
    wrong.append(error)


def padded(
  sequences: list[list[int]], rows: int, length: int, end_id: int
) -> tuple[Int32[np.ndarray, '{rows} {length}'], Int32[np.ndarray, ' {rows}']]:
  """Token ids and lengths of a batch; spare rows hold one end symbol."""
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
  """One value a row; spare rows have another."""
  padded = np.full(rows, spare, np.int32)
  own = list(values)
  padded[: len(own)] = own
  return padded


def own_batches(
  lengths: Sequence[int], shapes: Sequence[DecodeShape]
) -> Iterator[PlannedBatch]:
  """The batches of this process, of those that `plan_batches` makes."""
  return shard_batches(
    plan_batches(lengths, shapes), jax.process_count(), jax.process_index()
  )


def device_put_rows(batch: Item, mesh: Mesh) -> Item:
  """The rows over the devices.

  Args:
    batch: rows of this process.
    mesh: of `data_mesh`, over its devices or those of all processes.

  Returns:
    The rows of all processes. The last one stands several times where they
    would not divide over the devices.
  """
  own = mesh.local_mesh.size

  def put(rows: np.ndarray) -> jax.Array:
    spare = -len(rows) % own
    even = np.pad(rows, [(0, spare), *[(0, 0)] * (rows.ndim - 1)], 'edge')
    return jax.make_array_from_process_local_data(by_rows(mesh), even)

  return jax.tree.map(put, batch)


def device_get_rows(found: Item) -> Item:
  """The rows of this process on the host, spare ones behind them."""

  def parts(rows: jax.Array) -> list[jax.Array]:
    shards = rows.addressable_shards
    shards = sorted(shards, key=lambda shard: shard.index[0].start or 0)
    return [shard.data for shard in shards]

  own = jax.device_get(jax.tree.map(parts, found))
  return jax.tree.map(
    np.concatenate, own, is_leaf=lambda part: isinstance(part, list)
  )


def one_ahead(items: Iterable[Item]) -> Iterator[Item]:
  """The items, each made before the one before it is handed out.

  The device then works on the next batch while the host reads the last.
  """
  for earlier, later in itertools.pairwise(itertools.chain(items, [None])):
    del later
    yield earlier
