"""What the source's embeddings predict beside the decoder.

Liu et al. (ICLR 2021): two predictions with weights g and 1 - g. A target
subword counts in all and, but for end symbols and tags, in the bin of its
frequency in this text.

Axis letters: B batch, T positions, P parts, Q quantities, V vocabulary.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fusion_jax import figures
from fusion_jax.analysis.frequency import BINS, frequency_bins, subword_counts
from fusion_jax.analysis.passes import sum_over_text, token_masks, watched
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.text_parts import LABELS
from fusion_jax.analysis.view import Numbers, View, nullable, sides_of
from fusion_jax.config import ModelConfig
from fusion_jax.decoding.score import token_log_probabilities
from fusion_jax.fusion.gtrans import at_positions
from fusion_jax.models.transformer import ModelOutput

# What is averaged over the tokens.
NAMES = 'weight', 'own', 'surface', 'both'
_LABELS = {
  'own': "the decoder's own",
  'surface': "of the source's embeddings",
  'both': 'both together',
}


def _mixes(config: ModelConfig) -> bool:
  """Return whether two predictions are mixed; 'soft' adds their scores."""
  surface = 'decoder' in sides_of(config, 'surface_fusion')
  return surface and config.decoder.surface.kind != 'soft'


def surface_numbers(analysed: RunWithText) -> Numbers:
  """Measure both predictions of every target subword, with teacher forcing."""
  run = analysed.run
  targets = (pair.target for pair in analysed.pairs)
  counts = subword_counts(targets, run.target_tokenizer)
  bins = jnp.asarray(frequency_bins(counts))

  def sums(parameters, batch):
    output, _ = watched(run.model, parameters, batch, 'views')
    found = _quantities(output, batch.target, run.config.model)
    member = jnp.concatenate(
      [
        jnp.ones((*batch.target.shape, 1)),
        jax.nn.one_hot(bins[batch.target], BINS),
      ],
      axis=-1,
    )
    member *= token_masks(batch)['decoder'][..., None]
    return jnp.einsum('BTP,QBT->PQ', member, found), member.sum((0, 1))

  total, tokens = sum_over_text(analysed, sums)
  means = (
    total.astype(np.float64) / np.where(tokens > 0, tokens, np.nan)[:, None]
  )
  columns = dict(zip(NAMES, nullable(means.T), strict=True))
  whole = tokens.astype(int).tolist()
  return {name: _by_part(own) for name, own in columns.items()} | {
    'tokens': _by_part(whole)
  }


def _quantities(
  output: ModelOutput, targets: Int[Array, 'B T'], config: ModelConfig
) -> Float[Array, 'Q B T']:
  assert output.log_weights is not None, 'two predictions'
  combine = config.decoder.combine
  each = [
    output._replace(features=features, log_weights=None)
    for features in output.features
  ]
  weights = jnp.exp(at_positions(output.log_weights, targets.shape))
  losses = [
    -token_log_probabilities(one, targets, combine) for one in (*each, output)
  ]
  return jnp.stack([weights[0], *losses])


def _by_part(values: list[Any]) -> dict[str, Any]:
  return {'all': values[0], 'frequency': values[1:]}


def draw(numbers: Numbers) -> figures.Figure:
  """Draw the losses by the frequency of the subword, and g."""
  figure, axes = figures.panels(2)
  losses = {label: _curve(numbers[name]) for name, label in _LABELS.items()}
  x = LABELS['frequency']
  figures.draw_lines(axes[0], losses, x, 'loss, nats per subword')
  weight = {"the decoder's own": _curve(numbers['weight'])}
  figures.draw_lines(axes[1], weight, x, 'weight g of the prediction')
  axes[1].set_ylim(0, 1)
  return figure


def _curve(own: dict[str, Any]) -> tuple[list[int], list[float]]:
  """Number the bins from 1, without those that are empty."""
  points = [
    (number, value)
    for number, value in enumerate(own['frequency'], start=1)
    if value is not None
  ]
  return [x for x, _ in points], [y for _, y in points]


def summary(numbers: Numbers) -> str:
  """Compare the losses of the predictions."""
  own, surface, both = (numbers[name]['all'] for name in _LABELS)
  return (
    f"The decoder's own prediction has a loss of {own:.3f} nats and that of "
    f"the source's embeddings {surface:.3f}; with a mean weight of "
    f'{numbers["weight"]["all"]:.3f} on the first they have {both:.3f}.'
  )


VIEW = View(
  name='surface',
  title="What the source's embeddings predict",
  source='Liu et al. 2021',
  reading=(
    'Losses of the prediction of the decoder, of that of the embeddings of the '
    'source and of both together, and the weight of the first; by how frequent '
    'the predicted subword is in this text. With start=baseline the second one '
    'is the blend that the opening of the features gives.'
  ),
  measure=surface_numbers,
  draw=draw,
  summary=summary,
  applies=_mixes,
  needs='a model with two predictions (surface_fusion, hard or learned)',
)
