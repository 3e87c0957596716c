"""BLEU of single decoder groups, and of mixtures without the lowest groups.

Yang et al. (TASLP 2022), Table VI: BLEU of every single group k:k, and of the
mixtures a:N of the highest groups.
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fusion_jax import figures
from fusion_jax.analysis.groups import PAPER_WEIGHTS, psi_of
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.sides import sides_of
from fusion_jax.analysis.view_result import View, ViewResult
from fusion_jax.decoding.translate import Translator
from fusion_jax.fusion.gtrans import group_count
from fusion_jax.metrics import Scores, corpus_scores
from fusion_jax.runs.loading import TrainedModel

logger = logging.getLogger(__name__)

# Table VI of Yang et al. (2022): De-En, 6 + 18 layers, groups of 3. The text of
# the paper gives 35.02 for the last group.
_PAPER = {
  'single': [33.12, 34.16, 34.94, 34.89, 35.17, 35.05],
  'pruned': [35.43, 35.39, 35.29, 35.10, 35.09, 35.05],
  'psi': PAPER_WEIGHTS,
}


def with_groups(run: TrainedModel, groups: str) -> TrainedModel:
  """Return a run that translates with some of its decoder groups.

  Args:
    run: Run of a model with decoder groups.
    groups: Range of groups as 'first:last', counted from 1.
  """
  model = run.config.model
  gtrans = dataclasses.replace(model.decoder.gtrans, inference_groups=groups)
  decoder = dataclasses.replace(model.decoder, gtrans=gtrans)
  model = dataclasses.replace(model, decoder=decoder)
  return dataclasses.replace(
    run,
    config=dataclasses.replace(run.config, model=model),
    model=run.model.clone(config=model),
  )


def group_scores(subject: RunWithText) -> Mapping[str, Any]:
  """Measure BLEU with every single group, and without the lowest groups.

  Args:
    subject: Run and text to measure.

  Returns:
    'single', BLEU of k:k for k = 1..N; 'pruned', BLEU of a:N for a = 1..N;
    'psi'; 'lines' of the text; 'signature' of BLEU; 'decoding', the options of
    the search; and 'paper', the values of Yang et al. (2022).
  """
  run = subject.run
  count = group_count(run.config.model, 'decoder')
  single = [f'{k}:{k}' for k in range(1, count + 1)]
  pruned = [f'{a}:{count}' for a in range(1, count + 1)]
  scores = {
    groups: _scores(subject, groups)
    for groups in dict.fromkeys([*pruned, *single])
  }
  return {
    'single': [scores[groups].bleu for groups in single],
    'pruned': [scores[groups].bleu for groups in pruned],
    'psi': psi_of(run.parameters, run.config.model),
    'lines': len(subject.lines),
    'signature': scores[single[0]].bleu_signature,
    'decoding': dataclasses.asdict(run.config.decoding),
    'paper': _PAPER,
  }


def _scores(subject: RunWithText, groups: str) -> Scores:
  run = with_groups(subject.run, groups)
  sources, references = zip(*subject.lines, strict=True)
  translator = Translator(run, run.config.decoding)
  translations = list(translator.translate(sources))
  language = run.config.data.target_language
  scores = corpus_scores(translations, references, language)
  logger.info('groups %s: BLEU %.2f', groups, scores.bleu)
  return scores


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """Draw BLEU of single and of several groups, and psi; the paper's below."""
  figure, axes = figures.panels(4)
  _draw_row(axes[:2], numbers, 'this run')
  _draw_row(axes[2:], numbers['paper'], 'Yang 2022, De-En, 6 + 18 layers')
  return figure


def _draw_row(
  axes: Sequence[figures.Axes], numbers: Mapping[str, Any], title: str
) -> None:
  count = len(numbers['single'])
  numbered = range(1, count + 1)
  curves = {
    'group k alone': (numbered, numbers['single']),
    f'groups k:{count}': (numbered, numbers['pruned']),
  }
  figures.draw_lines(axes[0], curves, 'k', 'BLEU')
  names = [str(k) for k in numbered]
  figures.draw_bars(axes[1], names, {'psi': numbers['psi']}, 'group', 'psi')
  for panel in axes:
    panel.set_title(title)


def look(subject: RunWithText) -> ViewResult:
  """Translate with every choice of groups, and summarise and draw BLEU."""
  numbers = group_scores(subject)
  best = max(numbers['single'])
  place = numbers['single'].index(best) + 1
  return ViewResult(
    numbers,
    lambda: draw(numbers),
    f'All groups together have BLEU {numbers["pruned"][0]:.2f}; the best one '
    f'alone, group {place} of {len(numbers["single"])}, has {best:.2f}.',
  )


VIEW = View(
  name='group_bleu',
  title='BLEU of groups of layers',
  source='Yang et al. 2022, Table VI',
  reading=(
    'BLEU of the text translated with one group of decoder layers alone, and '
    'with the highest groups together.'
  ),
  look=look,
  applies=lambda config: 'decoder' in sides_of(config, 'gtrans'),
  needs='a model with decoder groups (decoder.fusion=gtrans)',
  slow=True,
)
