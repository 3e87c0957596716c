"""Similarity of the layers to each other and to the embeddings.

Emelin et al. (2019), Fig. 6 and 7: the cosine of every layer's state with the
embedding of its own position.

Axis letters: B batch, T positions, D model width, L layers.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fusion_jax import figures
from fusion_jax.analysis.passes import sum_over_text, watched
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view import SIDES, Numbers, View

_EPSILON = 1e-12


def cosine_sums(
  layers: tuple[Float[Array, 'B T D'], ...], tokens: Bool[Array, 'B T']
) -> Float[Array, 'L L']:
  """Compute sum_positions cos(H[i], H[j]) for every pair of layers.

  Args:
    layers: States H[0..L].
    tokens: True at positions that count.

  Returns:
    float32 sums.
  """
  states = jnp.stack(layers).astype(jnp.float32)
  norms = jnp.linalg.norm(states, axis=-1, keepdims=True)
  units = states / jnp.maximum(norms, _EPSILON) * tokens[..., None]
  return jnp.einsum('iBTD,jBTD->ij', units, units)


def similarity(analysed: RunWithText) -> Numbers:
  """Measure the mean cosine between all layers of both stacks.

  Returns:
    For 'encoder' and 'decoder' a matrix [L+1][L+1], H[0] first, and the number
    of positions of the mean. Two kinds of positions do not count: the first of
    the decoder, which reads the start symbol in every sentence, and the end
    symbol of the source.
  """
  model = analysed.run.model

  def sums(parameters, batch):
    output, _ = watched(model, parameters, batch)
    places = [jnp.arange(side.shape[1]) for side in batch[:2]]
    inside = (
      places[0] < batch.source_lengths[:, None] - 1,
      (places[1] > 0) & (places[1] < batch.target_lengths[:, None]),
    )
    states = output.encoder_layers, output.decoder_layers
    return [
      (cosine_sums(layers, tokens), tokens.sum())
      for layers, tokens in zip(states, inside, strict=True)
    ]

  return {
    side: {
      'cosine': (total / max(count, 1)).tolist(),
      'positions': int(count),
    }
    for side, (total, count) in zip(
      SIDES, sum_over_text(analysed, sums), strict=True
    )
  }


def draw(numbers: Numbers) -> figures.Figure:
  """Draw maps of both stacks, and the first row of each as a curve."""
  figure, axes = figures.panels(3, columns=3)
  for panel, side in zip(axes, SIDES, strict=False):
    values = np.array(numbers[side]['cosine'])
    names = [str(layer) for layer in range(len(values))]
    figures.draw_map(
      panel,
      values,
      names,
      names,
      f'layer of the {side}',
      'layer',
      'mean cosine',
      upwards=True,
    )
    panel.set_title(side)
  curves: dict[str, tuple[range, Any]] = {}
  for side in SIDES:
    first = numbers[side]['cosine'][0]
    curves[side] = (range(len(first)), first)
  figures.draw_lines(axes[2], curves, 'layer', 'mean cosine with H[0]')
  axes[2].set_title('with the embeddings')
  return figure


def summary(numbers: Numbers) -> str:
  """Compare the last layer with the embeddings."""
  ends = ', '.join(
    f'{numbers[side]["cosine"][0][-1]:.2f} in the {side}' for side in SIDES
  )
  return f'The last layer has a cosine with the embeddings of {ends}.'


VIEW = View(
  name='similarity',
  title='Similarity of the layers',
  source='Emelin et al. 2019, Fig. 6 and 7',
  reading=(
    'Mean cosine of the states of two layers at the same position; layer 0 is '
    'the embedding with its position.'
  ),
  measure=similarity,
  draw=draw,
  summary=summary,
)
