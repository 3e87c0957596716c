"""Telemetry: named numbers that show how fusions work on one batch.

Modules sow small arrays into the collection 'telemetry'. Only this separate
pass collects them, so that the training step need not know of them.
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
  """Return a jitted pass without dropout that returns the recorded arrays."""

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
  """Return one named number for every element that was recorded."""
  values = {}
  for path, array in traverse_util.flatten_dict(dict(recorded)).items():
    name = '/'.join(path)
    array = np.asarray(jax.device_get(array), np.float64)
    for index, value in np.ndenumerate(array):
      values['_'.join((name, *map(str, index)))] = float(value)
  return values
