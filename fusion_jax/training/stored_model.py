"""Whose parameters a checkpoint holds, told by their names and shapes."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Parameters
from fusion_jax.training.weights import path_name


def check_model(path: Path, wanted: Parameters) -> None:
  """Refuses a checkpoint of another model.

  Args:
    path: of the checkpoint; one that is damaged is not refused.
    wanted: the parameters of this model, or their shapes.

  Raises:
    InputError: its parameters have other names or shapes.
  """
  try:
    with ocp.StandardCheckpointer() as checkpointer:
      metadata = checkpointer.metadata(path / 'parameters')
      stored = _shapes(metadata.item_metadata.tree)
  except Exception:  # Orbax raises many kinds on damaged files.
    return
  difference = _difference(stored, _shapes(wanted))
  if difference:
    raise InputError(
      f'{path}: holds another model than that of config.json: {difference}; '
      'put back the config.json that it was trained with, or give another '
      '--workdir'
    )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  return {
    path_name(path): tuple(leaf.shape)
    for path, leaf in jax.tree.leaves_with_path(tree)
  }


def _difference(
  stored: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]
) -> str:
  """The first parameter that is not the same; '' if all are."""
  for name in sorted(stored | wanted):
    there, here = stored.get(name), wanted.get(name)
    if there is None:
      return f'it has no {name}'
    if here is None:
      return f'it has {name}, this model has not'
    if there != here:
      return f'{name} is {list(there)} there and {list(here)} here'
  return ''
