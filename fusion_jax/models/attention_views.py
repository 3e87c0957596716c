"""The weights of a pass's attentions, for whoever watches the pass.

Every attention hands its weights to the collection 'attention':

    output, kept = model.apply(variables, ..., mutable=['attention'])
    weights = cross_attention_weights(kept['attention'])

Axis letters: B batch, N heads, T queries, S keys, L layers, K beam.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float32

_NAME = 'weights'


def hand_out(module: nn.Module, weights: Float32[Array, 'B N T S']) -> None:
  """Hands the weights of an attention to whoever watches this pass.

  Nothing is kept without a mutable collection 'attention', nor while
  parameters are made.

  Args:
    module: the attention.
    weights: before dropout; 0 where a key is masked.
  """
  if not module.is_initializing():
    module.sow(
      'attention',
      _NAME,
      weights,
      init_fn=lambda: None,
      reduce_fn=lambda _, new: new,
    )


def cross_attention_weights(
  collection: Mapping[str, Any],
) -> Float32[Array, 'L B N T S']:
  """The weights of the decoder over the source, in the order of layers.

  Args:
    collection: 'attention', of a pass of the Transformer or of one of its
      steps of decoding.

  Returns:
    float32, before dropout, of all layers that were run. A query is a target
    position of the teacher-forced pass (T), or the newest position of a
    hypothesis (K in place of T).
  """
  layers = collection['decoder']
  if 'layers' in layers:
    return layers['layers']['cross_attention'][_NAME]
  names = sorted(layers, key=lambda name: int(name.removeprefix('layer_')))
  return jnp.stack([layers[name]['cross_attention'][_NAME] for name in names])
