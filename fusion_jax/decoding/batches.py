"""The bounded set of batch shapes, the batches that fill it, and their arrays.

Sentences are taken longest first, so that a batch holds sentences of similar
length and only the last batch of a window is not full.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int32

from fusion_jax.config import DecodingConfig
from fusion_jax.data.batching import Shape
from fusion_jax.errors import InputError
from fusion_jax.parallel.mesh import by_rows, put_whole
from fusion_jax.parallel.processes import merged

# Divisor of the rows for batches that are not full: a quarter of the full ones,
# a quarter of that and so on. Every shape costs a compilation.
_ROW_STEP = 4

# A window has the slots of this number of batches, enough for sorting to pay.
# The first windows are smaller, so that the first lines are written soon. The
# number of items is bounded too, because each costs memory however short it is.
_FIRST_WINDOW, _WINDOW_BATCHES, _WINDOW_ITEMS = 4, 64, 32_768

Item = TypeVar('Item')


class PlannedBatch(NamedTuple):
  """Shape of a batch and the sentences that fill it, at most shape.rows."""

  shape: Shape
  sentences: list[int]


def target_limit(
  source_length: int, options: DecodingConfig, longest: int | None = None
) -> int:
  """Return the largest number of subwords of a translation.

  It counts the end symbol and depends on the sentence alone, never on the
  batch it is in.
  """
  # 1.1 * 10 is 11.000000000000002: rounding first keeps its ceiling 11.
  scaled = math.ceil(round(options.max_length_ratio * source_length, 6))
  limit = scaled + options.max_length_extra
  return limit if longest is None else min(limit, longest)


def shortest_target(source_length: int, options: DecodingConfig) -> int:
  """Return the smallest number of subwords of a translation, end included."""
  scaled = math.ceil(round(options.min_length_ratio * source_length, 6))
  return max(scaled + options.min_length_extra, 1)


def decode_shapes(
  options: DecodingConfig, longest: int | None = None
) -> tuple[Shape, ...]:
  """Return every shape that decoding with these options can compile.

  Source lengths are 8, 16, 24, 32, 48, 64, 96, ... up to
  options.max_source_length. Full batches have the largest power of two of rows
  that options.batch_tokens allows; smaller ones have a quarter of that, a
  sixteenth and so on, down to 1.
  """
  shapes = []
  for source in _source_lengths(options.max_source_length):
    target = target_limit(source, options, longest)
    rows = max(options.batch_tokens // (options.beam_size * source), 1)
    ladder, rows = {1}, 2 ** (rows.bit_length() - 1)
    while rows > 1:
      ladder.add(rows)
      rows //= _ROW_STEP
    shapes += [Shape(rows, source, target) for rows in sorted(ladder)]
  return tuple(shapes)


def plan_batches(
  lengths: Sequence[int], shapes: Sequence[Shape]
) -> Iterator[PlannedBatch]:
  """Put sentences into batches, longest first."""
  rows_of = {
    source: list(group)
    for source, group in itertools.groupby(shapes, lambda shape: shape.source)
  }
  order = np.argsort(-np.asarray(lengths, np.int64), kind='stable').tolist()
  while order:
    source = min(length for length in rows_of if length >= lengths[order[0]])
    sentences = order[: rows_of[source][-1].rows]
    order = order[len(sentences) :]
    yield PlannedBatch(
      next(s for s in rows_of[source] if s.rows >= len(sentences)), sentences
    )


def shard_batches(
  batches: Iterable[PlannedBatch], processes: int, process: int
) -> Iterator[PlannedBatch]:
  """Yield the batches of one process.

  A program on the devices of several processes must be started by all of them,
  so each process gets the same shapes in the same order.
  """
  for shape, group in itertools.groupby(batches, lambda batch: batch.shape):
    same = list(group)
    for first in range(0, len(same), processes):
      share = same[first : first + processes][process : process + 1]
      yield from share or [PlannedBatch(shape, [])]


def _source_lengths(longest: int) -> list[int]:
  lengths = [8]
  while lengths[-1] < longest:
    # 16, 24, 32, 48, 64, 96, ...: powers of two and their midpoints.
    power = 2 ** (lengths[-1].bit_length() - 1)
    middle = power + power // 2
    lengths.append(middle if 16 <= lengths[-1] < middle else 2 * power)
  return [*lengths[:-1], longest]


def windows(
  items: Iterable[tuple[Item, int]],
  batch_slots: int,
  batches: int = _WINDOW_BATCHES,
) -> Iterator[list[Item]]:
  """Cut a stream into windows that are held in memory one at a time."""
  window: list[Item] = []
  slots, now = 0, min(_FIRST_WINDOW, batches)
  wrong = None
  try:
    for item, size in items:
      window.append(item)
      slots += 1 + size
      if slots >= now * batch_slots or len(window) == _WINDOW_ITEMS:
        yield window
        window, slots, now = [], 0, min(2 * now, batches)
  except InputError as error:  # After the items before it.
    wrong = error
  if window:
    yield window
  if wrong:
    raise wrong


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
  given = list(values)
  return np.array(given + [spare] * (rows - len(given)), np.int32)


def on_mesh(
  program: Callable[..., Any], parameters: Any, mesh: Mesh, **options: Any
) -> Callable[..., Any]:
  """Return a program of a batch of rows; its parameters are on the devices."""
  whole = put_whole(parameters, mesh)

  def start(rows: Any, **others: Any) -> Any:
    with jax.set_mesh(mesh):
      return program(whole, device_put_rows(rows, mesh), **options, **others)

  return start


def device_put_rows(batch: Item, mesh: Mesh) -> Item:
  """Distribute rows over the devices."""

  def put(rows: np.ndarray) -> jax.Array:
    spare = -len(rows) % mesh.local_mesh.size
    even = np.pad(rows, [(0, spare), *[(0, 0)] * (rows.ndim - 1)], 'edge')
    return jax.make_array_from_process_local_data(by_rows(mesh), even)

  return jax.tree.map(put, batch)


def device_get_rows(arrays: Item) -> Item:
  """Copy this process's rows to the host, with spare ones at the end."""

  def parts(rows: jax.Array) -> list[jax.Array]:
    shards = rows.addressable_shards
    shards = sorted(shards, key=lambda shard: shard.index[0].start or 0)
    return [shard.data for shard in shards]

  local = jax.device_get(jax.tree.map(parts, arrays))
  return jax.tree.map(
    np.concatenate, local, is_leaf=lambda part: isinstance(part, list)
  )


def computed(
  lengths: Sequence[int],
  shapes: Sequence[Shape],
  start: Callable[[PlannedBatch], Any],
  read: Callable[[int, Any], Item],
  on_batch: Callable[[list[int]], None] = lambda sentences: None,
  shared: Any = None,
) -> list[Item]:
  """Return what is read of the row of every sentence.

  A batch is read when the next one has been started, so that the device works
  while the host reads. Processes share the work if they are given the type of
  what is read, in which it travels; otherwise each computes everything.
  """
  batches = plan_batches(lengths, shapes)
  if shared is not None:
    batches = shard_batches(batches, jax.process_count(), jax.process_index())
  results: dict[int, Item] = {}
  started: list[tuple[PlannedBatch, Any]] = []

  def read_first() -> None:
    batch, arrays = started.pop(0)
    arrays = device_get_rows(arrays)
    for row, sentence in enumerate(batch.sentences):
      values = jax.tree.map(lambda x, row=row: x[row], arrays)
      results[sentence] = read(sentence, values)
    on_batch(batch.sentences)

  for batch in batches:
    started.append((batch, start(batch)))
    if len(started) > 1:
      read_first()
  if started:
    read_first()
  if shared is not None:
    on_batch([n for n in range(len(lengths)) if n not in results])
    results = merged(results, shared)
  return [results[sentence] for sentence in range(len(lengths))]


class PairIds(NamedTuple):
  """Subword ids of both sides, the end symbols included."""

  source: list[int]
  target: list[int]

  @property
  def is_blank(self) -> bool:
    """Whether both sides are the end symbol alone."""
    return len(self.source) == len(self.target) == 1

  @property
  def length(self) -> int:
    """Length of the longer side."""
    return max(len(self.source), len(self.target))
