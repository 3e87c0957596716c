"""Telemetry: named numbers that show how fusions work on one batch.

Modules sow small arrays into the collection 'telemetry'. Only this separate
pass collects them, so that the training step need not know of them.

Warnings tell of fusions that have stopped learning. A router that sends every
layer to one capsule, or all layers to all capsules alike, computes a constant
choice; an encoder without a gradient stays as it started. Neither shows in the
loss for a long time.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from fusion_jax.config import ExperimentConfig, ModelConfig, Side
from fusion_jax.config.fusion import SIDES
from fusion_jax.data.batching import Batch
from fusion_jax.models.transformer import Parameters, Transformer

# Number of updates for which a trouble must last before there is a warning.
LASTING = 300
# Least number of updates between two looks at the routers, which are made when
# progress is reported.
WATCH_EVERY = 100
# A router does not route if its coupling entropy is below the first or above
# the second of these shares of the largest possible entropy, or if a larger
# share of its capsules than the third is close to 0.
_DEAD_ENTROPY = 0.02
_UNIFORM_ENTROPY = 0.999
_DEAD_CAPSULES = 0.9
# Least norm of the encoder layers' gradient relative to that of the whole
# model; plain models and fusions that learn have 0.1 to 0.4.
_STARVED = 0.02


def make_telemetry_step(
  model: Transformer,
) -> Callable[[Parameters, Batch], Mapping[str, Any]]:
  """Return a jitted pass without dropout that returns the recorded arrays."""

  def telemetry_step(parameters, batch):
    _, recorded = model.apply(
      {'params': parameters},
      batch.source,
      batch.source_lengths,
      batch.target,
      target_lengths=batch.target_lengths,
      mutable=['telemetry'],
    )
    return recorded.get('telemetry', {})

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


def routers(config: ModelConfig) -> list[Side]:
  """Return the sides of the model that route."""
  schemes = {side: config.side(side).scheme for side in SIDES}
  return [side for side, scheme in schemes.items() if scheme and scheme.routes]


def router_troubles(
  telemetry: Mapping[str, float], config: ModelConfig
) -> dict[str, str]:
  """Return what is wrong with the routers of a model, if anything."""
  troubles: dict[str, str] = {}
  for side in routers(config):
    options = config.side(side).options
    last = options.iterations - 1
    entropy = telemetry[f'{side}/read_out/coupling_entropy_{last}']
    dead = telemetry[f'{side}/read_out/dead_capsules']
    most = math.log(options.capsule_count(config.width))
    shown = f'coupling entropy {entropy:.2f} of {most:.2f}'
    if dead > _DEAD_CAPSULES:
      troubles[f'{side} capsules'] = (
        f'{dead:.0%} of the capsules of the {side} are dead (shorter than '
        '0.01): no gradient comes through them'
      )
    elif most and last and entropy < _DEAD_ENTROPY * most:
      troubles[f'{side} one capsule'] = (
        f'the router of the {side} sends each layer to one capsule ({shown})'
      )
    elif most and last and entropy > _UNIFORM_ENTROPY * most:
      troubles[f'{side} uniform'] = (
        f'the router of the {side} does not choose ({shown})'
      )
  return troubles


def encoder_trouble(
  encoder_norms: list[float], whole: float, config: ExperimentConfig
) -> dict[str, str]:
  """Return a sentence if the encoder gets next to no gradient."""
  share = math.sqrt(sum(norm**2 for norm in encoder_norms)) / max(whole, 1e-30)
  if config.training.freeze or share >= _STARVED:
    return {}
  return {
    'starved encoder': 'the encoder learns next to nothing: its layers have '
    f'{share:.1%} of the norm of the gradient (plain models: 10 % to 40 %)'
  }


class Watch:
  """Record of troubles that warns once of each that lasts."""

  def __init__(self):
    self._since: dict[str, int] = {}
    self._told: set[str] = set()

  def __call__(self, step: int, troubles: Mapping[str, str]) -> list[str]:
    """Return the warnings that are due."""
    self._since = {key: self._since.get(key, step) for key in troubles}
    self._told &= set(troubles)
    due = [
      key
      for key, since in self._since.items()
      if step - since >= LASTING and key not in self._told
    ]
    self._told |= set(due)
    return [
      f'since step {self._since[key]}: {troubles[key]}; see docs/training.md'
      for key in due
    ]
