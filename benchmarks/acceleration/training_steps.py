"""Training steps as a contestant: any size of batch, dense or packed rows.

    echo 5 | python -m benchmarks.acceleration.training_steps --size=base \
        --dtype=bfloat16 --layout=packed --rows=64 --length=128 --updates=5

A timed step is as many updates as --updates says, which the host starts one
after another without waiting, as in a training.
"""

import dataclasses
import itertools
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int32

from benchmarks.fusion_jax_step import (
  FusionJaxStep,
  experiment,
  random_batches,
)
from benchmarks.serving import contestant_parser, serve
from benchmarks.sizes import SIZES, Size
from fusion_jax.config.presets import changed
from fusion_jax.data.batching import Batch, Shape
from fusion_jax.data.packed_batches import PackedPlan, assemble_packed

_BATCHES = 4
_SPECIAL_SYMBOLS = 4


class _Pair(NamedTuple):
  source: Int32[np.ndarray, ' S']
  target: Int32[np.ndarray, ' T']


class TrainingSteps:
  """Updates of a model, and the memory of the device."""

  def __init__(self, size: Size, dtype: str, packed: bool, updates: int):
    make = packed_batches if packed else random_batches
    batches = list(itertools.islice(make(size), _BATCHES))
    self._target_tokens = float(
      np.mean([batch.target_lengths.sum() for batch in batches])
    )
    config = changed(experiment(size), {'model.compute_dtype': dtype})
    self._step = FusionJaxStep(size, config, itertools.cycle(batches))
    self._updates = updates

  def step(self) -> None:
    """Some updates."""
    self._step.updates(self._updates)

  def report(self) -> dict[str, Any]:
    """Also operations, real tokens and peak memory on the device."""
    memory = jax.local_devices()[0].memory_stats() or {}
    return self._step.report() | {
      'gflop': self._step.gflop,
      'target_tokens': self._target_tokens,
      'peak_device_mb': memory.get('peak_bytes_in_use', 0) / 2**20 or None,
    }


def packed_batches(size: Size) -> Iterator[Batch]:
  """Give packed rows of random pairs, on the host, over and over.

  Args:
    size: its rows and length are those of a batch, on both sides. Sentences
      have up to 7/16 of the length, and sources about that of their targets.

  Yields:
    Batches of numpy arrays.
  """
  random = np.random.default_rng(0)
  # A row takes four pairs of mean length.
  pairs, longest = 4 * size.rows * (_BATCHES + 1), 7 * size.length // 16
  targets = random.integers(2, longest + 1, pairs)
  sources = np.clip(targets + random.integers(-2, 3, pairs), 2, longest)
  lengths = np.stack([sources, targets], axis=1).astype(np.int32)
  shape = Shape(size.rows, size.length, size.length)
  plan = PackedPlan(lengths, shape, seed=0)
  batches = []
  for step in range(_BATCHES):
    _, _, chosen = plan.batch(step)
    taken = chosen >= 0
    examples = [
      _Pair(
        *(
          random.integers(_SPECIAL_SYMBOLS, size.vocabulary, n, dtype=np.int32)
          for n in lengths[index]
        )
      )
      for index in chosen[taken]
    ]
    batches.append(assemble_packed(examples, taken.sum(axis=1), shape))
  return itertools.cycle(batches)


def main() -> None:
  """Serves until stdin ends."""
  parser = contestant_parser()
  add = parser.add_argument
  add('--dtype', choices=('float32', 'bfloat16'), default='float32')
  add('--layout', choices=('dense', 'packed'), default='dense')
  for name in ('rows', 'length', 'chunk', 'updates'):
    add(f'--{name}', type=int, required=True)
  arguments = parser.parse_args()
  packed = arguments.layout == 'packed'
  serve(
    lambda size: TrainingSteps(
      dataclasses.replace(
        size,
        rows=arguments.rows,
        length=arguments.length,
        loss_chunk=arguments.chunk,
      ),
      arguments.dtype,
      packed,
      arguments.updates,
    ),
    SIZES[arguments.size],
    warm_up_steps=1,
  )


if __name__ == '__main__':
  sys.exit(main())
