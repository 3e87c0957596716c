"""Curves of a run on Weights & Biases, where `training.wandb` names a project.

WANDB_MODE=offline keeps them in the run directory, for `wandb sync`.
"""

import secrets
import types
from collections.abc import Mapping
from pathlib import Path

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.serialization import to_dict
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import write_whole


def check_wandb(config: ExperimentConfig) -> None:
  """Refuse a config that asks for wandb where it is not installed."""
  if config.training.wandb:
    _wandb()


def _wandb() -> types.ModuleType:
  try:
    import wandb
  except ImportError:
    raise InputError(
      'config.training.wandb: the package wandb is missing: pip install wandb'
    ) from None
  return wandb


class WandbLog:
  """Run on Weights & Biases; a resumed training continues it."""

  def __init__(self, config: ExperimentConfig, workdir: Path):
    """Begin or resume the run; raises InputError where wandb refuses."""
    wandb, kept = _wandb(), workdir / 'wandb_id'
    if not kept.exists():
      write_whole(kept, secrets.token_hex(8).encode())
    try:
      self._run = wandb.init(
        project=config.training.wandb,
        name=config.name,
        config=to_dict(config),
        dir=str(workdir),
        id=kept.read_text(),
        resume='allow',
      )
    except wandb.Error as error:
      raise InputError(f'config.training.wandb: {first_line(error)}') from None

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Add one point to each curve."""
    self._run.log(dict(values), step=step)

  def close(self) -> None:
    """End the run."""
    self._run.finish()
