"""Teacher-forced passes over a text, batch by batch, reduced on the device.

The values computed inside a pass are large, so a view keeps sums over the text
instead. Modules sow their values into the collection 'views'.
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

# Few shapes, because a view takes longer to compile than to run.
_SHAPES = 2
_TOKENS = 2_048

Carry = TypeVar('Carry')


class TextBatch(NamedTuple):
  """A batch, and the places of its rows in the text.

  Attributes:
    batch: Batch of sentences.
    rows: Index among the pairs, for each row with a sentence.
  """

  batch: Batch
  rows: Int[np.ndarray, ' R']


def text_shapes(
  pairs: Sequence[TextPair], tokens: int = _TOKENS
) -> tuple[Shape, ...]:
  """Choose the shapes of the batches of a text, at most two.

  Args:
    pairs: Pairs of the text.
    tokens: Token slots of a batch on one side.
  """
  config = BatchConfig(tokens=tokens, shapes=_SHAPES, row_multiple=1)
  return choose_shapes(_lengths(pairs), config)


def text_batches(
  pairs: Sequence[TextPair], shapes: Sequence[Shape]
) -> Iterator[TextBatch]:
  """Yield batches with every pair of a text once.

  Args:
    pairs: Pairs of the text.
    shapes: Result of `text_shapes`.
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
  """Run a pass without dropout, and return what its modules sowed.

  Args:
    model: Model of a run.
    parameters: Parameters of the model.
    batch: Batch, read with teacher forcing.
    collections: Collections to return: 'views', 'attention' or 'telemetry'.

  Returns:
    The output, and for each collection nested mappings of arrays by the names
    of the modules; {} if nothing was sown.
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
  """Fold a pure step over the batches of the text, on the device.

  Args:
    subject: Run and text.
    step: Step to jit; it is compiled once for each of the two shapes.
    start: First carry.
    tokens: Token slots of a batch on one side.

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
