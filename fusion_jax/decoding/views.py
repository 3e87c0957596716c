"""Views of a model's internals, computed by teacher-forced passes over pairs.

Axis letters: B batch, S source, T target, N heads, L layers, D model width.
"""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.batches import (
  PairIds,
  PlannedBatch,
  computed,
  decode_shapes,
  on_mesh,
  padded,
  target_limit,
  windows,
)
from fusion_jax.decoding.ensemble import alone
from fusion_jax.errors import InputError
from fusion_jax.layers.sow import cross_attention_weights
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.mesh import data_mesh, over_rows
from fusion_jax.runs.loading import TrainedModel

# Batches whose views are held at a time; views are much larger than text.
_WINDOW_BATCHES = 2

Item = TypeVar('Item')


@dataclasses.dataclass(frozen=True)
class InternalsSelection:
  """Selection of the internals to view; layers and heads count from 1."""

  attention: bool = True  # The weights over the source.
  layers: str | int = 'mean'  # 'all', 'mean', 'last' or a number.
  heads: str | int = 'mean'  # 'all', 'mean' or a number.
  states: bool = False  # H[0..L] of both stacks.


class Internals(NamedTuple):
  """Internals of a batch, or of one pair without the axis B, if selected."""

  # Over the source; the axes L and N exist only if all of them are selected.
  attention: Float32[Array | np.ndarray, '*BLN T S'] | None
  # H[0..L] of both stacks.
  encoder: Float32[Array | np.ndarray, '*B L S D'] | None
  decoder: Float32[Array | np.ndarray, '*B L T D'] | None


class View(NamedTuple):
  """Pair and its internals, without any padding."""

  pair: PairIds
  internals: Internals


class Viewer:
  """Viewer of one run's internals; `blank` are those of an empty line."""

  def __init__(
    self,
    run: TrainedModel,
    options: DecodingConfig,
    selection: InternalsSelection,
  ):
    """Prepare to view; nothing is compiled yet."""
    self._end_id = run.target_tokenizer.vocabulary.end
    self._slots = options.batch_tokens
    # Each of several processes views all pairs by itself, at its own pace.
    devices = 1 if jax.process_count() > 1 else None
    self._pass = on_mesh(
      _internals,
      run.parameters,
      data_mesh(jax.local_devices()[:devices]),
      model=run.model,
      selection=selection,
    )
    self.blank = _checked(run, selection)
    longest = options.max_source_length
    # A translation may be longer than any source.
    limit = target_limit(longest, options, alone(run).longest)
    self.shapes = decode_shapes(
      dataclasses.replace(
        options, beam_size=1, max_source_length=max(longest, limit)
      )
    )

  def view(
    self, items: Iterable[tuple[Item, Sequence[PairIds]]]
  ) -> Iterator[tuple[Item, list[View]]]:
    """Yield the items with views of their pairs, in order.

    The view of a pair does not depend on the other pairs.
    """
    slots = (
      ((item, pairs), sum(pair.length for pair in pairs))
      for item, pairs in items
    )
    for window in windows(slots, self._slots, _WINDOW_BATCHES):
      views = iter(self._views([p for _, pairs in window for p in pairs]))
      for item, pairs in window:
        yield item, [next(views) for _ in pairs]

  def _views(self, pairs: list[PairIds]) -> list[View]:
    def start(batch: PlannedBatch) -> Internals:
      chosen, size = [pairs[n] for n in batch.sentences], batch.shape[:2]
      source, target = (
        padded(list(side), *size, self._end_id)
        for side in zip(*chosen, strict=True)
      )
      return self._pass((*source, target[0]))

    return computed(
      [pair.length for pair in pairs],
      self.shapes,
      start,
      lambda place, row: _cut(pairs[place], row),
    )


def _checked(run: TrainedModel, selection: InternalsSelection) -> Internals:
  """Check that the selected internals exist; return `Viewer.blank`."""
  everything = dataclasses.replace(selection, layers='all', heads='all')
  one = np.ones((1, 1), np.int32)
  seen = jax.eval_shape(
    functools.partial(_internals, model=run.model, selection=everything),
    run.parameters,
    (one, one[0], one),
  )
  if seen.attention is not None:
    for kind, count in zip(
      ('layers', 'heads'), seen.attention.shape[1:3], strict=True
    ):
      chosen = getattr(selection, kind)
      if isinstance(chosen, int) and not 1 <= chosen <= count:
        raise InputError(
          f'--attention_{kind}={chosen}: the decoder has {count} {kind}, '
          'counted from 1'
        )
  if seen.encoder is None:
    return Internals(None, None, None)
  states = (
    np.zeros((side.shape[1], 0, side.shape[3]), np.float32)
    for side in (seen.encoder, seen.decoder)
  )
  return Internals(None, *states)


@functools.partial(jax.jit, static_argnames=('model', 'selection'))
@over_rows
def _internals(
  parameters: Parameters,
  rows: tuple[Int32[Array, 'B S'], Int32[Array, ' B'], Int32[Array, 'B T']],
  *,
  model: Transformer,
  selection: InternalsSelection,
) -> Internals:
  output, kept = model.apply(
    {'params': parameters},
    *rows,
    mutable=['attention'] if selection.attention else [],
  )
  attention = encoder = decoder = None
  if selection.attention:
    weights = cross_attention_weights(kept['attention'])
    weights = _chosen(jnp.moveaxis(weights, 0, 1), 2, selection.heads)
    attention = _chosen(weights, 1, selection.layers)
  if selection.states:
    encoder, decoder = (
      jnp.stack(layers, 1).astype(jnp.float32)
      for layers in (output.encoder_layers, output.decoder_layers)
    )
  return Internals(attention, encoder, decoder)


def _chosen(
  weights: Float32[Array, '...'], axis: int, which: str | int
) -> Float32[Array, '...']:
  """Take all along an axis, their mean, the last, or one counted from 1."""
  if which == 'all':
    return weights
  if which == 'mean':
    return weights.mean(axis)
  place = which - 1 if isinstance(which, int) else -1
  return weights.take(place, axis)


def _cut(pair: PairIds, padded: Internals) -> View:
  source, target = len(pair.source), len(pair.target)
  attention, encoder, decoder = padded
  return View(
    pair,
    Internals(
      None if attention is None else attention[..., :target, :source],
      None if encoder is None else encoder[:, :source],
      None if decoder is None else decoder[:, :target],
    ),
  )
