"""Frozen parameters, chosen by patterns over their names."""

import difflib
import fnmatch
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from fusion_jax.errors import InputError
from fusion_jax.models.parameter_kinds import path_name
from fusion_jax.models.transformer import Parameters

# Largest number of names in a message.
_LISTED = 3


def are_frozen(parameters: Parameters, patterns: Sequence[str]) -> Parameters:
  """Return a tree with True where a name matches one of the patterns."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: _matches(path_name(path), patterns), parameters
  )


def check_patterns(parameters: Parameters, patterns: Sequence[str]) -> None:
  """Refuse patterns that match no parameter or leave none to train."""
  leaves = jax.tree_util.tree_leaves_with_path(parameters)
  names = [path_name(path) for path, _ in leaves]
  for pattern in patterns:
    if not fnmatch.filter(names, pattern):
      close = difflib.get_close_matches(pattern, names, _LISTED, cutoff=0.0)
      raise InputError(
        f'config.training.freeze: {pattern!r} matches no parameter; the '
        f'nearest names are {", ".join(close)}'
      )
  if all(_matches(name, patterns) for name in names):
    raise InputError(
      'config.training.freeze: matches all parameters and leaves nothing to '
      'train; take a pattern out'
    )


def without_frozen(
  gradients: Parameters, patterns: Sequence[str]
) -> Parameters:
  """Return gradients with zeros for frozen parameters; XLA drops the rest."""
  return jax.tree.map(
    lambda leaf, frozen: jnp.zeros_like(leaf) if frozen else leaf,
    gradients,
    are_frozen(gradients, patterns),
  )


def train_others(
  optimizer: optax.GradientTransformation, patterns: Sequence[str]
) -> optax.GradientTransformationExtraArgs:
  """Restrict an optimizer to the parameters that are not frozen."""

  def labels(parameters):
    return jax.tree.map(
      lambda frozen: 'frozen' if frozen else 'trained',
      are_frozen(parameters, patterns),
    )

  parts = {'trained': optimizer, 'frozen': optax.set_to_zero()}
  return optax.partition(parts, labels)


def _matches(name: str, patterns: Sequence[str]) -> bool:
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
