"""Similarity of the layers to each other, to the embeddings and the output.

Emelin et al. (2019), Fig. 6 and 7: the cosine of every layer's state with the
embedding of its own position. The output of a stack is what follows its fusion:
its cosines show which layers are in it, which the weights of a fusion alone do
not, as the layers differ in size.

Axis letters: B batch, T positions, D model width, L layers, S states, O outputs
of a stack.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fusion_jax import figures
from fusion_jax.analysis.passes import sums_over_text, watched
from fusion_jax.analysis.run_with_text import SIDES, Numbers, RunWithText

_EPSILON = 1e-12


def cosine_sums(
  states: Float[Array, 'S B T D'], tokens: Bool[Array, 'B T']
) -> Float[Array, 'S S']:
  """Compute sum_positions cos(X[i], X[j]) for every pair of states."""
  states = states.astype(jnp.float32)
  norms = jnp.linalg.norm(states, axis=-1, keepdims=True)
  units = states / jnp.maximum(norms, _EPSILON) * tokens[..., None]
  return jnp.einsum('iBTD,jBTD->ij', units, units)


def similarity(analysed: RunWithText) -> Numbers:
  """Measure the mean cosine between all layers of both stacks."""
  model = analysed.run.model

  def sums(parameters, batch):
    output = watched(model, parameters, batch).output
    places = [jnp.arange(side.shape[1]) for side in batch[:2]]
    inside = (
      places[0] < batch.source_lengths[:, None] - 1,
      (places[1] > 0) & (places[1] < batch.target_lengths[:, None]),
    )
    states = (
      _stacked(output.encoder_layers, output.encoder_features),
      _stacked(output.decoder_layers, output.features),
    )
    return [
      (cosine_sums(of_side, tokens), tokens.sum())
      for of_side, tokens in zip(states, inside, strict=True)
    ]

  numbers: dict[str, Any] = {}
  (totals,) = sums_over_text(analysed, sums, [analysed.run.parameters])
  for side, (total, count) in zip(SIDES, totals, strict=True):
    layers = model.config.layers(side) + 1
    cosines = total[:, :layers] / max(count, 1)
    numbers[side] = {
      'cosine': cosines[:layers].tolist(),
      'output': cosines[layers:].tolist(),
      'positions': int(count),
    }
  return numbers


def _stacked(
  layers: tuple[Float[Array, 'B T D'], ...], outputs: Float[Array, '*O B T D']
) -> Float[Array, 'S B T D']:
  """Stack H[0..L] of a stack and what follows it, one tensor or several."""
  return jnp.stack([*layers, *outputs.reshape(-1, *layers[0].shape)])


def draw_similarity(numbers: Numbers) -> figures.Figure:
  """Draw maps of both stacks in one scale, and their first rows as curves."""
  panels, curves = [], {}
  parts = [numbers[x][part] for x in SIDES for part in ('cosine', 'output')]
  limits = figures.spanned(np.concatenate([np.ravel(part) for part in parts]))
  for side in SIDES:
    cosines, outputs = numbers[side]['cosine'], numbers[side]['output']
    names = [str(layer) for layer in range(len(cosines))]
    out = [f'out {number}' for number in range(1, len(outputs) + 1)]
    rows = names + (out if len(outputs) > 1 else ['out'])
    values = np.array(cosines + outputs)
    labels = f'layer of the {side}', 'layer', 'mean cosine', limits
    given = values, rows, names, *labels
    panels.append(figures.Panel(side, figures.draw_map, *given))
    curves[side] = range(len(cosines)), cosines[0]
  title, y = 'with the embeddings', 'mean cosine with H[0]'
  panels.append(figures.Panel(title, figures.draw_lines, curves, 'layer', y))
  return figures.draw_panels(panels)


def similarity_summary(numbers: Numbers) -> str:
  """Compare the last layer with the embeddings."""
  ends = ', '.join(
    f'{numbers[side]["cosine"][0][-1]:.2f} in the {side}' for side in SIDES
  )
  return f'The last layer has a cosine with the embeddings of {ends}.'
