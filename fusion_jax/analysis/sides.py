"""The sides of a model whose fusion scheme a view can look at."""

from typing import get_args

from fusion_jax.config import ModelConfig, Side

SIDES: tuple[Side, ...] = get_args(Side)


def sides_of(config: ModelConfig, *schemes: str) -> tuple[Side, ...]:
  """Return the sides whose fusion is one of the schemes, the encoder first."""
  return tuple(side for side in SIDES if config.side(side).fusion in schemes)
