"""Values that modules compute inside a pass, recorded on request.

A value is kept only where the pass asks for its collection:

    output, kept = model.apply(variables, ..., mutable=['attention'])
    weights = cross_attention_weights(kept['attention'])

Otherwise XLA drops what was computed for it. The collections are 'telemetry',
small arrays that tell how a fusion works; 'views', values of every position;
and 'attention', the weights of each attention.

Axis letters: B batch, N heads, T queries, S keys, L layers, K beam.
"""

from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Float32

Collection = Literal['telemetry', 'views', 'attention']


def wants(module: nn.Module, collection: Collection) -> bool:
  """Return whether this pass keeps a collection."""
  initializing = module.is_initializing()
  return not initializing and module.is_mutable_collection(collection)


def sow(
  module: nn.Module,
  collection: Collection,
  name: str,
  value: Float[Array, '...'],
) -> None:
  """Keep a value of this pass if its collection is asked for.

  Nothing is kept while parameters are initialised.
  """
  if wants(module, collection):
    module.sow(
      collection,
      name,
      value,
      init_fn=lambda: None,
      reduce_fn=lambda _, new: new,
    )


def cross_attention_weights(
  collection: Mapping[str, Any],
) -> Float32[Array, 'L B N T S']:
  """Return the weights of the decoder over the source, layer by layer.

  Args:
    collection: Collection 'attention', kept in a pass of the Transformer or in
      one of its decoding steps.

  Returns:
    Weights of all layers that were run, before dropout. A query is a target
    position of a pass with teacher forcing (T), or the newest position of a
    hypothesis (K in place of T).
  """
  layers = collection['decoder']
  if 'layers' in layers:
    return layers['layers']['cross_attention']['weights']
  names = [name for name in layers if name.startswith('layer_')]
  names.sort(key=lambda name: int(name.removeprefix('layer_')))
  return jnp.stack(
    [layers[name]['cross_attention']['weights'] for name in names]
  )
