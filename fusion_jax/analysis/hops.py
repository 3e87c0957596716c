"""Which layers the hops of multi-layer representation fusion attend to.

Wang et al. (COLING 2018), Fig. 5: the attention over the layers, by hop.

Axis letters: B batch, T positions, P hops, n fused layers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from fusion_jax import figures
from fusion_jax.analysis.passes import token_means, watched
from fusion_jax.analysis.run_with_text import RunWithText, TextPair
from fusion_jax.analysis.view import SIDES, Numbers, View, sides_of
from fusion_jax.config import ModelConfig, Side
from fusion_jax.data.batching import Batch, Shape, assemble

# Number of sentences whose attention is given word by word.
_SENTENCES = 5
# Most subwords in the figure, so that they stay readable.
_MOST_PIECES = 36


def hop_attention(analysed: RunWithText) -> Numbers:
  """Measure the attention of every hop over the layers."""
  config = analysed.run.config.model
  sides = sides_of(config, 'hops')
  means = token_means(
    analysed, sides, lambda shown, side: {'mean': _attention(shown)}
  )
  pairs = analysed.pairs[:_SENTENCES]
  sentences = _sentence_attention(analysed, pairs, sides)
  return {
    side: {
      'layers': _layer_names(config, side),
      'mean': means[side].means['mean'].T.tolist(),
      'positions': means[side].positions,
      'sentences': [
        _sentence(analysed, pair, side, attention)
        for pair, attention in zip(pairs, sentences[side], strict=True)
      ],
    }
    for side in sides
  }


def _attention(shown: Mapping[str, Any]) -> Float[jax.Array, 'B T n P']:
  return shown['read_out']['hop_attention']


def _layer_names(config: ModelConfig, side: Side) -> list[str]:
  first = 0 if config.side(side).mlrf.include_embedding else 1
  return [f'H[{n}]' for n in range(first, config.layers(side) + 1)]


def _sentence_attention(
  analysed: RunWithText, pairs: Sequence[TextPair], sides: tuple[Side, ...]
) -> Mapping[Side, Float[np.ndarray, 'B T n P']]:
  """Return the attention of a few sentences, computed in one batch."""
  model = analysed.run.model
  shape = Shape(
    len(pairs),
    max(len(pair.source) for pair in pairs),
    max(len(pair.target) for pair in pairs),
  )

  @jax.jit
  def one_pass(parameters: Any, batch: Batch) -> Mapping[Side, jax.Array]:
    _, kept = watched(model, parameters, batch, 'views')
    return {side: _attention(kept['views'][side]) for side in sides}

  batch = assemble(list(pairs), shape)
  return jax.device_get(one_pass(analysed.run.parameters, batch))


def _sentence(
  analysed: RunWithText,
  pair: TextPair,
  side: Side,
  attention: Float[np.ndarray, 'T n P'],
) -> dict[str, Any]:
  run = analysed.run
  ids, tokenizer = pair.source, run.source_tokenizer
  if side == 'decoder':
    ids, tokenizer = pair.target, run.target_tokenizer
  pieces = tokenizer.pieces(ids.tolist())
  read = pieces
  if side == 'decoder':
    read = [*tokenizer.pieces([tokenizer.vocabulary.start]), *pieces[:-1]]
  return {
    'line': pair.line,
    'pieces': pieces,
    'read': read,
    'attention': attention[: len(ids)].transpose(2, 1, 0).tolist(),
  }


def draw(numbers: Numbers) -> figures.Figure:
  """Draw the mean of each side, then the hops of the first sentence."""
  sides = [side for side in SIDES if side in numbers]
  last = sides[-1]
  hops = len(numbers[last]['mean'])
  width = min(len(numbers[last]['sentences'][0]['pieces']), _MOST_PIECES)
  figure, axes = figures.panels(
    len(sides) + hops, size=(max(4.4, 0.22 * width + 1.5), 3.2)
  )
  for panel, side in zip(axes, sides, strict=False):
    _draw_mean(panel, numbers[side])
    panel.set_title(f'{side}, mean over the text')
  for hop, panel in enumerate(axes[len(sides) :]):
    _draw_hop(panel, numbers[last], hop, last)
  return figure


def _draw_mean(axes: figures.Axes, numbers: Mapping[str, Any]) -> None:
  mean = np.array(numbers['mean'])
  names = [str(hop) for hop in range(1, len(mean) + 1)]
  _draw_map(axes, numbers, mean.T, names, 'hop', 'mean attention')


def _draw_hop(
  axes: figures.Axes, numbers: Mapping[str, Any], hop: int, side: str
) -> None:
  sentence = numbers['sentences'][0]
  # Matplotlib would read text between two dollar signs as a formula.
  pieces = [
    piece.replace('$', r'\$') for piece in sentence['pieces'][:_MOST_PIECES]
  ]
  attention = np.array(sentence['attention'][hop])[:, : len(pieces)]
  does = 'predicted' if side == 'decoder' else 'read'
  x = f'subword that is {does}'
  _draw_map(axes, numbers, attention, pieces, x, 'attention')
  axes.tick_params('x', rotation=90)
  axes.set_title(f'{side}, line {sentence["line"]}, hop {hop + 1}')


def _draw_map(
  axes: figures.Axes,
  numbers: Mapping[str, Any],
  attention: Float[np.ndarray, 'n C'],
  columns: list[str],
  x: str,
  unit: str,
) -> None:
  layers, limits = numbers['layers'], (0.0, 1.0)
  figures.draw_map(
    axes, attention, layers, columns, x, 'layer', unit, limits, upwards=True
  )


def summary(numbers: Numbers) -> str:
  """Name the layer that each hop attends to most."""
  said = []
  for side, own in numbers.items():
    best = [own['layers'][index] for index in np.argmax(own['mean'], axis=1)]
    shares = ', '.join(
      f'{name} {max(hop):.2f}'
      for name, hop in zip(best, own['mean'], strict=True)
    )
    said.append(f'in the {side} {shares}')
  return f'The layer that each hop attends to most: {"; ".join(said)}.'


VIEW = View(
  name='hops',
  title='Which layers the hops read',
  source='Wang et al. 2018, Fig. 5',
  reading=(
    'Attention of every hop over the layers, H[0] the embedding: its mean over '
    'the text, and the words of one sentence.'
  ),
  measure=hop_attention,
  draw=draw,
  summary=summary,
  applies=lambda config: bool(sides_of(config, 'hops')),
  needs='a model with multi-hop fusion (hops)',
)
