"""Lexical shortcuts and feature fusion (Emelin et al. 2019)."""

import numpy as np
from numpy_parts import Layers, attend, concat, dense, layer_norm, sigmoid

from fusion_jax.fusion.shortcuts import ShortcutOptions


def shortcut_keys_values(
  parameters: dict, shortcut: np.ndarray, h: np.ndarray, feature_fusion: bool
) -> tuple[np.ndarray, np.ndarray]:
  """K' = r Ks + (1 - r) Kh, r = sigmoid(Ks + Kh + b); V' alike (Eq. 5-14)."""
  return tuple(
    _gated(parameters, name, shortcut, h, feature_fusion)
    for name in ('key', 'value')
  )


def _gated(parameters, name, shortcut, h, feature_fusion):
  if feature_fusion:
    both = dense(parameters[f'fused_{name}'], concat([shortcut, h]))
    ours, plain = np.split(both, 2, axis=-1)
  else:
    ours = dense(parameters[f'shortcut_{name}'], shortcut)
    plain = dense(parameters[name], h)
  gate = sigmoid(ours + plain + parameters[f'{name}_gate_bias'])
  return gate * ours + (1 - gate) * plain


def shortcut_source(layers: Layers, options: ShortcutOptions) -> np.ndarray:
  """H[0], or H[l-2] and in layers 1 and 2 H[0]; from H[0..l-1], pre-norm."""
  number = 0 if options.source == 'lexical' else max(len(layers) - 2, 0)
  auto = options.source == 'non_lexical' and not options.author_compat
  if options.source_norm == 'plain' or (options.source_norm == 'auto' and auto):
    width = layers[number].shape[-1]
    plain = {'scale': np.ones(width), 'bias': np.zeros(width)}
    return layer_norm(layers[number], plain)
  return layers[number]


def shortcut_attention(
  parameters: dict,
  layers: Layers,
  options: ShortcutOptions,
  h: np.ndarray,
  mask: np.ndarray,
  heads: int,
) -> tuple[np.ndarray, np.ndarray]:
  """Self-attention of layer l.

  Args:
    parameters: of the attention.
    layers: H[0..l-1].
    options: of the scheme.
    h: H[l-1] after the norm before attention, if there is one.
    mask: of the self-attention.
    heads: of the attention.

  Returns:
    What the sublayer gives to its residual, and what it is added to.
  """
  compatible = options.author_compat
  keys, values = shortcut_keys_values(
    parameters,
    shortcut_source(layers, options),
    layers[-1] if compatible else h,
    options.feature_fusion,
  )
  query = dense(parameters['query'], h)
  y = dense(parameters['out'], attend(query, keys, values, mask, heads))
  return y, h if compatible else layers[-1]


def shortcut_cross_attention(
  parameters: dict,
  x: np.ndarray,
  features: np.ndarray,
  embedding: np.ndarray,
  options: ShortcutOptions,
  mask: np.ndarray,
  heads: int,
) -> np.ndarray:
  """From x to the encoder's features, its H[0] being the options."""
  keys, values = shortcut_keys_values(
    parameters, embedding, features, options.feature_fusion
  )
  query = dense(parameters['query'], x)
  return dense(parameters['out'], attend(query, keys, values, mask, heads))
