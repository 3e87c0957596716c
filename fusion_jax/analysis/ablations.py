"""Ablations: loss and BLEU of a model without one layer, group or fused layer.

Nothing is retrained: the part is left out at inference, in the teacher-forced
pass and in every step of the search. One program serves all ablations, because
the masks are inputs (`fusion_jax.layers.ablation_masks`).
"""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fusion_jax import figures
from fusion_jax.analysis.ablation_masks import Ablation, ablated, ablations_of
from fusion_jax.analysis.passes import text_batches, text_shapes
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view_result import View, ViewResult
from fusion_jax.decoding.translate import Translator
from fusion_jax.metrics import corpus_scores
from fusion_jax.models.losses import LossSums, zero_sums
from fusion_jax.models.transformer import Parameters
from fusion_jax.training.step import batch_loss

logger = logging.getLogger(__name__)

_CHUNK_TOKENS = 1_024
_FIELDS = 'side', 'kind', 'number'
_KINDS = {
  'layer': 'layer',
  'input': 'fused layer (0: embedding)',
  'group': 'group',
}
_MEASURES = {
  'loss_change': 'change of the loss, nats per subword',
  'bleu_change': 'change of BLEU, points',
}


def ablation_losses(
  subject: RunWithText, chosen: Sequence[Ablation | None]
) -> list[float | None]:
  """Measure the mean negative log-likelihood per target subword.

  Args:
    subject: Run and text to measure.
    chosen: Ablations to apply, one after the other; None leaves nothing out.

  Returns:
    Losses in nats (for GTRANS, those of the mixture); None where a loss is not
    finite.
  """
  run, pairs = subject.run, subject.pairs
  shapes = text_shapes(pairs)

  @jax.jit
  def step(parameters: Parameters, sums: LossSums, batch) -> LossSums:
    new = batch_loss(run.model, parameters, batch, 0.0, _CHUNK_TOKENS)[0]
    return jax.tree.map(jnp.add, sums, new)

  losses = []
  for ablation in chosen:
    parameters = ablated(run.parameters, run.config.model, ablation)
    sums = zero_sums()
    for batch, _ in text_batches(pairs, shapes):
      sums = step(parameters, sums, batch)
    loss = float(sums.negative_log_likelihood) / int(sums.tokens)
    losses.append(loss if math.isfinite(loss) else None)
  return losses


def ablation_scores(
  subject: RunWithText, chosen: Sequence[Ablation | None]
) -> tuple[list[float], str]:
  """Measure BLEU under each ablation, with the search of the run's config.

  Args:
    subject: Run and text to measure.
    chosen: Ablations to apply, one after the other; None leaves nothing out.

  Returns:
    Scores from 0 to 100, and sacreBLEU's signature.
  """
  run = subject.run
  sources, references = zip(*subject.lines, strict=True)
  language = run.config.data.target_language
  found, signature = [], ''
  for number, ablation in enumerate(chosen, start=1):
    parameters = ablated(run.parameters, run.config.model, ablation)
    own = dataclasses.replace(run, parameters=parameters)
    translations = list(Translator(own, run.config.decoding).translate(sources))
    scores = corpus_scores(translations, references, language)
    found.append(scores.bleu)
    signature = scores.bleu_signature
    logger.info(
      'translated %d of %d: BLEU %.2f %s',
      number,
      len(chosen),
      scores.bleu,
      f'without {_name(ablation)}' if ablation else 'of the whole model',
    )
  return found, signature


def measure(subject: RunWithText) -> Mapping[str, Any]:
  """Measure loss and BLEU of the whole model and of every ablation.

  Args:
    subject: Run and text to measure.

  Returns:
    'whole': loss and BLEU of the whole model. 'ablations': for each side, kind
    and number, both values and their changes; None where a loss is not finite.
  """
  chosen = ablations_of(subject.run.config.model)
  losses = ablation_losses(subject, (None, *chosen))
  scores, signature = ablation_scores(subject, (None, *chosen))
  rows = [
    dataclasses.asdict(ablation)
    | {
      'loss': loss,
      'loss_change': _difference(loss, losses[0]),
      'bleu': bleu,
      'bleu_change': bleu - scores[0],
    }
    for ablation, loss, bleu in zip(chosen, losses[1:], scores[1:], strict=True)
  ]
  return {
    'lines': len(subject.lines),
    'bleu_signature': signature,
    'whole': {'loss': losses[0], 'bleu': scores[0]},
    'ablations': rows,
  }


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """Draw a row of bars for each side and kind: loss, then BLEU."""
  rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
  for row in numbers['ablations']:
    rows.setdefault((row['side'], row['kind']), []).append(row)
  figure, axes = figures.panels(len(_MEASURES) * len(rows))
  places = iter(axes)
  for (side, kind), own in rows.items():
    for measure_name, label in _MEASURES.items():
      panel = next(places)
      heights = [figures.drawn(row[measure_name]) for row in own]
      names = [str(row['number']) for row in own]
      x = f'{_KINDS[kind]} that is left out'
      figures.draw_bars(panel, names, {side: heights}, x, label)
      panel.set_title(side)
  return figure


def look(subject: RunWithText) -> ViewResult:
  """Measure the ablations, and summarise and draw them."""
  numbers = measure(subject)
  whole = numbers['whole']
  worst = max(numbers['ablations'], key=_cost)
  loss = 'no' if whole['loss'] is None else f'{whole["loss"]:.3f}'
  change = worst['loss_change']
  change = 'no finite loss' if change is None else f'{change:+.3f} nats'
  return ViewResult(
    numbers,
    lambda: draw(numbers),
    f'The whole model has a loss of {loss} nats and BLEU {whole["bleu"]:.2f}; '
    f'it suffers most without {_name(Ablation(*map(worst.get, _FIELDS)))}: '
    f'{change}, BLEU {worst["bleu_change"]:+.2f}.',
  )


def _name(ablation: Ablation) -> str:
  names = {'layer': 'layer', 'input': 'fused layer', 'group': 'group'}
  return f'{names[ablation.kind]} {ablation.number} of the {ablation.side}'


def _difference(value: float | None, whole: float | None) -> float | None:
  return None if value is None or whole is None else value - whole


def _cost(row: Mapping[str, Any]) -> float:
  return math.inf if row['loss_change'] is None else row['loss_change']


VIEW = View(
  name='ablations',
  title='What the model loses without a part',
  source='Michel et al. 2019, who leave out heads',
  reading=(
    'How loss and BLEU change when one layer, one fused layer or one group is '
    'left out at inference: the higher a loss and the lower BLEU, the more the '
    'model relies on it.'
  ),
  look=look,
  slow=True,
)
