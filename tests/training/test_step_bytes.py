"""Bytes that a compiled training step moves; a new copy of the state fails."""

import dataclasses

import jax
import pytest

from benchmarks.hlo_traffic import traffic
from fusion_jax.config import PRESETS, ExperimentConfig, TrainingConfig
from fusion_jax.data.batching import Shape
from fusion_jax.tools.aot.programs import Problem, training_program

# For the norm XLA on a CPU reads each gradient, writes its square and reads it.
_NORM = 3
# Each moment is read with the gradient and written; then the parameter is read
# with both moments and written.
_ADAM = 3 + 3 + 4
# The average is read with the parameter and written.
_AVERAGE = 3


def _optimizer_bytes(ema: float) -> float:
  """Bytes of the optimizer in one step, over those of the parameters."""
  model = dataclasses.replace(PRESETS['tiny'], width=64, filter=256)
  config = ExperimentConfig(model=model, training=TrainingConfig(ema=ema))
  problem = Problem((256, 256), Shape(2, 4, 4))
  program = training_program(config, problem, jax.devices()[:1])
  text = program.traced.lower().compile().as_text()
  moved = sum(x.moved for x in traffic(text) if x.part == 'optimizer')
  return moved / (4 * program.parameters)


@pytest.mark.parametrize(
  ('ema', 'passes'),
  [(0.0, _NORM + _ADAM), (0.99, _NORM + _ADAM + _AVERAGE)],
)
def test_an_update_passes_over_the_state_no_more_than_it_must(ema, passes):
  assert _optimizer_bytes(ema) < 1.02 * passes
