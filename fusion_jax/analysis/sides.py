"""The stacks of a model that have what a view looks at."""

from typing import get_args

from fusion_jax.config import ModelConfig, Side

SIDES: tuple[Side, ...] = get_args(Side)


def sides_of(config: ModelConfig, *schemes: str) -> tuple[Side, ...]:
  """The sides whose fusion is one of some schemes, the encoder first."""
  return tuple(side for side in SIDES if config.side(side).fusion in schemes)
