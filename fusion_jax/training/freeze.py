"""Parameters that are not trained, chosen by patterns over their names."""

import difflib
import fnmatch
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from fusion_jax.errors import InputError
from fusion_jax.models.parameter_kinds import path_name
from fusion_jax.models.transformer import Parameters

# Names in a message.
_LISTED = 3


def are_frozen(parameters: Parameters, patterns: Sequence[str]) -> Parameters:
  """The tree with True where a name matches one of the patterns.

  Args:
    parameters: nested dictionaries.
    patterns: of `fnmatch.fnmatchcase`, over names like
      'encoder/layer_0/feed_forward/out/kernel'; * matches / too.

  Returns:
    Booleans in the same tree.
  """
  return jax.tree_util.tree_map_with_path(
    lambda path, _: _matches(path_name(path), patterns), parameters
  )


def check_patterns(parameters: Parameters, patterns: Sequence[str]) -> None:
  """Refuses patterns that do not do what they seem to.

  Args:
    parameters: of the model, or their shapes.
    patterns: of `training.freeze`.

  Raises:
    InputError: one matches no parameter, or together they match all.
  """
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
  """Gradients with zeros where a parameter is frozen; XLA drops the rest."""
  return jax.tree.map(
    lambda leaf, frozen: jnp.zeros_like(leaf) if frozen else leaf,
    gradients,
    are_frozen(gradients, patterns),
  )


def train_others(
  optimizer: optax.GradientTransformation, patterns: Sequence[str]
) -> optax.GradientTransformationExtraArgs:
  """The optimizer for what is not frozen; the rest has no state.

  Args:
    optimizer: of the parameters that are trained.
    patterns: of `training.freeze`.

  Returns:
    An optimizer of all parameters whose updates of frozen ones are 0.
  """

  def labels(parameters):
    return jax.tree.map(
      lambda frozen: 'frozen' if frozen else 'trained',
      are_frozen(parameters, patterns),
    )

  parts = {'trained': optimizer, 'frozen': optax.set_to_zero()}
  return optax.partition(parts, labels)


def _matches(name: str, patterns: Sequence[str]) -> bool:
  return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
