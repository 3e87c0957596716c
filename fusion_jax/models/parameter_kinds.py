"""The parameters that are weights: matrices of maps and embedding tables.

Only weights decay. All other parameters are few, and each has a meaning of its
own: scales and offsets of norms, biases of maps and gates, weights of layers
and groups, costs of capsules, residual scales.
"""

from typing import Any

import jax

from fusion_jax.models.transformer import Parameters

# The last parts of their names. A parameter that a new scheme adds under
# another name has no decay until it is listed here.
_WEIGHTS = frozenset(
  {
    'kernel',
    'embedding',
    'source_embedding',
    'target_embedding',
    'output_table',
    'source_positions',
    'target_positions',
  }
)


def path_name(path: tuple[Any, ...]) -> str:
  """Return 'encoder/layer_0/feed_forward/out/kernel' from the path of a leaf.

  Flax's box around a parameter is not part of its name.
  """
  keys = tuple(key for key in path if isinstance(key, jax.tree_util.DictKey))
  return jax.tree_util.keystr(keys, simple=True, separator='/')


def are_weights(parameters: Parameters) -> Parameters:
  """Return a tree with True where a parameter is a weight matrix or table."""
  return jax.tree_util.tree_map_with_path(
    lambda path, _: path_name(path).rpartition('/')[2] in _WEIGHTS, parameters
  )
