"""Teacher-forced passes over a text, batch by batch, reduced on the device.

What a pass computes inside is large; a view keeps sums over the text instead.
Modules sow what they compute into the collection 'views'.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Int

from fusion_jax.analysis.run_with_text import RunWithText, TextPair
from fusion_jax.config import BatchConfig
from fusion_jax.data.batching import (
  Batch,
  Shape,
  assemble,
  assign_shapes,
  choose_shapes,
  plan_epoch,
)
from fusion_jax.models.transformer import ModelOutput, Parameters, Transformer

# Few shapes: a view takes longer to compile than to run.
_SHAPES = 2
_TOKENS = 2_048

Carry = TypeVar('Carry')


class TextBatch(NamedTuple):
  """A batch, and where its rows stand in the text.

  rows: for each row with a sentence, its index among the pairs.
  """

  batch: Batch
  rows: Int[np.ndarray, ' R']


def text_shapes(
  pairs: Sequence[TextPair], tokens: int = _TOKENS
) -> tuple[Shape, ...]:
  """The shapes of the batches of a text, at most two.

  Args:
    pairs: of the text.
    tokens: slots of a batch on one side.
  """
  config = BatchConfig(tokens=tokens, shapes=_SHAPES, row_multiple=1)
  return choose_shapes(_lengths(pairs), config)


def text_batches(
  pairs: Sequence[TextPair], shapes: Sequence[Shape]
) -> Iterator[TextBatch]:
  """Every pair of a text once.

  Args:
    pairs: of the text.
    shapes: of `text_shapes`.
  """
  order = np.arange(len(pairs), dtype=np.int32)
  assignment = assign_shapes(_lengths(pairs), shapes)
  plan = plan_epoch(order, assignment, tuple(shapes))
  for index in range(plan.batches):
    shape, rows = plan.batch(index)
    yield TextBatch(assemble([pairs[row] for row in rows], shape), rows)


def watched(
  model: Transformer, parameters: Parameters, batch: Batch, *collections: str
) -> tuple[ModelOutput, Mapping[str, Any]]:
  """A pass without dropout, and what its modules handed out.

  Args:
    model: of a run.
    parameters: of it.
    batch: teacher-forced.
    collections: 'views', 'attention' or 'telemetry'.

  Returns:
    The output, and of each collection nested mappings of arrays by the names
    of the modules; {} where nothing was handed out.
  """
  output, kept = model.apply(
    {'params': parameters},
    batch.source,
    batch.source_lengths,
    batch.target,
    target_lengths=batch.target_lengths,
    mutable=list(collections),
  )
  return output, {name: kept.get(name, {}) for name in collections}


def over_text(
  subject: RunWithText,
  step: Callable[[Parameters, Carry, Batch], Carry],
  start: Carry,
  tokens: int = _TOKENS,
) -> Carry:
  """Folds a pure step over the batches of the text, on the device.

  Args:
    subject: the run and its text.
    step: jitted here; compiled once for each of the two shapes.
    start: what it begins with.
    tokens: slots of a batch on one side.

  Returns:
    The last carry, on the host.
  """
  step = jax.jit(step)
  carry = start
  for batch, _ in text_batches(
    subject.pairs, text_shapes(subject.pairs, tokens)
  ):
    carry = step(subject.run.parameters, carry, batch)
  return jax.device_get(carry)


def _lengths(pairs: Sequence[TextPair]) -> Int[np.ndarray, 'N 2']:
  return np.array(
    [[len(pair.source), len(pair.target)] for pair in pairs], np.int32
  )
