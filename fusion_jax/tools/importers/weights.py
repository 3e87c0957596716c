"""Weights of other programs under the names of our parameters.

Hugging Face and fairseq name the parts of a Transformer alike, as both go back
to the same code. Their matrices are [outputs, inputs], ours [inputs, outputs].

Axis letters: V vocabulary, D model width, P positions.
"""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Transformer, initial_parameters

# Our name of a part of a layer, and theirs.
_PARTS = {
  'self_attention/query': 'self_attn.q_proj',
  'self_attention/key': 'self_attn.k_proj',
  'self_attention/value': 'self_attn.v_proj',
  'self_attention/out': 'self_attn.out_proj',
  'self_attention_residual/norm': 'self_attn_layer_norm',
  'cross_attention/query': 'encoder_attn.q_proj',
  'cross_attention/key': 'encoder_attn.k_proj',
  'cross_attention/value': 'encoder_attn.v_proj',
  'cross_attention/out': 'encoder_attn.out_proj',
  'cross_attention_residual/norm': 'encoder_attn_layer_norm',
  'feed_forward/hidden': 'fc1',
  'feed_forward/out': 'fc2',
  'feed_forward_residual/norm': 'final_layer_norm',
}
_LEAVES = {'kernel': 'weight', 'scale': 'weight', 'bias': 'bias'}


@dataclasses.dataclass(frozen=True)
class Weights:
  """Weights of a file.

  Attributes:
    name: Name of the file, for messages.
    arrays: Array of each name.
    prefix: What their names of the two stacks begin with.
    tables: Their names of `source_embedding` and the other tables, by our name;
      the first that the file has is read.
    spare: Patterns of names that the file may have beside those that are read.
  """

  name: str
  arrays: Mapping[str, np.ndarray]
  prefix: str
  tables: Mapping[str, Sequence[str]]
  spare: Sequence[str]


def parameters_of(weights: Weights, model: Transformer) -> dict[str, Any]:
  """Return the weights as parameters of a model."""
  shapes = traverse_util.flatten_dict(
    jax.eval_shape(lambda: initial_parameters(model, 0)), sep='/'
  )
  names = {path: _their_name(path, weights) for path in shapes}
  _check_names(weights, list(names.values()))
  parameters = {
    path: _parameter(weights, name, path, shapes[path].shape)
    for path, name in names.items()
  }
  return traverse_util.unflatten_dict(parameters, sep='/')


def _their_name(path: str, weights: Weights) -> str:
  if path in weights.tables:
    choices = weights.tables[path]
    return next((n for n in choices if n in weights.arrays), choices[0])
  side, *place, leaf = path.split('/')
  if place == ['final_norm']:
    return f'{weights.prefix}{side}.layer_norm.{_LEAVES[leaf]}'
  number = place[0].removeprefix('layer_')
  part = _PARTS['/'.join(place[1:])]
  return f'{weights.prefix}{side}.layers.{number}.{part}.{_LEAVES[leaf]}'


def _check_names(weights: Weights, read: Sequence[str]) -> None:
  missing = [name for name in read if name not in weights.arrays]
  if missing:
    raise InputError(
      f'{weights.name}: lacks the weight {missing[0]}{_more(missing)}, which '
      'the model of its configuration has; give the files of one model'
    )
  left = sorted(
    name
    for name in weights.arrays.keys() - set(read)
    if not any(fnmatch.fnmatchcase(name, spare) for spare in weights.spare)
  )
  if left:
    raise InputError(
      f'{weights.name}: has the weight {left[0]}{_more(left)}, which the model '
      'of its configuration lacks; give the files of one plain Transformer'
    )


def _more(names: Sequence[str]) -> str:
  return f' and {len(names) - 1} more' if len(names) > 1 else ''


def _parameter(
  weights: Weights, name: str, path: str, shape: tuple[int, ...]
) -> np.ndarray:
  value = weights.arrays[name]
  transposed = path.endswith('/kernel')
  theirs = shape[::-1] if transposed else shape
  if value.shape != theirs:
    raise InputError(
      f'{weights.name}: the weight {name} has the shape {list(value.shape)}, '
      f'and the model of its configuration needs {list(theirs)}'
    )
  value = np.asarray(value, np.float32)
  if not np.isfinite(value).all():
    raise InputError(f'{weights.name}: the weight {name} is not finite')
  return np.ascontiguousarray(value.T if transposed else value)
