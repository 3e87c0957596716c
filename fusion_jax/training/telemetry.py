"""What the fusions of a model do, seen on one batch: named numbers.

Modules sow small arrays into the collection 'telemetry'. It is kept
only here, in a pass of its own, so that the training step does not know it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from fusion_jax.data.batching import Batch
from fusion_jax.models.transformer import Parameters, Transformer


def make_telemetry_step(
  model: Transformer,
) -> Callable[[Parameters, Batch], Mapping[str, Any]]:
  """The jitted pass without dropout that gives the recorded arrays."""

  def telemetry_step(parameters, batch):
    _, kept = model.apply(
      {'params': parameters},
      batch.source,
      batch.source_lengths,
      batch.target,
      target_lengths=batch.target_lengths,
      mutable=['telemetry'],
    )
    return kept.get('telemetry', {})

  return jax.jit(telemetry_step)


def telemetry_values(recorded: Mapping[str, Any]) -> dict[str, float]:
  """One named number for every element that was recorded.

  Args:
    recorded: of the telemetry step, on the host or the device.

  Returns:
    'decoder/read_out/coupling_entropy_2' and the like; indices are counted
    from 0, one for each axis.
  """
  values = {}
  for path, array in traverse_util.flatten_dict(dict(recorded)).items():
    name = '/'.join(path)
    array = np.asarray(jax.device_get(array), np.float64)
    for index, value in np.ndenumerate(array):
      values['_'.join((name, *map(str, index)))] = float(value)
  return values
