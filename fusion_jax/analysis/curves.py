"""Values logged over the training: accuracy, loss, scores and learning rate.

Wang et al. (2018), Fig. 4: accuracy on the training text against accuracy on
the validation text shows how much a model over-fits.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fusion_jax import figures
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view_result import View, ViewResult

# Fields of lines of kind 'train' and of kind 'valid'.
_TRAIN = 'accuracy', 'loss', 'perplexity', 'learning_rate', 'tokens_per_second'
_VALID = 'accuracy', 'loss', 'perplexity', 'bleu', 'chrf'
# Field of each panel, label of its axis, and whether the axis is logarithmic.
_PANELS = (
  ('accuracy', 'accuracy (share of target tokens)', False),
  ('loss', 'loss (nats a target token)', False),
  ('perplexity', 'perplexity a target token', True),
  ('bleu', 'BLEU of the validation text', False),
  ('chrf', 'chrF of the validation text', False),
  ('learning_rate', 'learning rate', False),
)
_NAMES = {'valid': 'validation', 'train': 'training'}


def curves(subject: RunWithText) -> Mapping[str, Any]:
  """Read the numbers of the training and of its validations, by update.

  Args:
    subject: Run; only its metrics are read.

  Returns:
    For 'train' and 'valid' the list 'steps' and a list of every number that
    was logged, None where it was not finite. 'valid' is {} before the first
    validation. 'gap': at every validation, the accuracy on the training text
    as last logged, minus that on the validation text; None where one of them
    is missing.

  Raises:
    InputError: Nothing was logged.
  """
  train = _columns(subject.of_kind('train'), _TRAIN)
  rows = [row for row in subject.metrics if row['kind'] == 'valid']
  valid = _columns(rows, _VALID) if rows else {}
  return {'train': train, 'valid': valid, 'gap': _gap(train, valid)}


def draw_runs(runs: Mapping[str, Mapping[str, Any]]) -> figures.Figure:
  """Draw the curves of one or more runs, overlaid.

  Args:
    runs: Results of `curves`, by the name of the run.

  Returns:
    A figure of six panels.
  """
  figure, axes = figures.panels(len(_PANELS))
  for panel, (field, name, logarithmic) in zip(axes, _PANELS, strict=True):
    pairs = {run: _lines(numbers, field) for run, numbers in runs.items()}
    figures.draw_pairs(panel, pairs, 'update', name)
    if logarithmic:
      panel.set_yscale('log')
  return figure


def draw(numbers: Mapping[str, Any]) -> figures.Figure:
  """Draw the curves of one run."""
  return draw_runs({'run': numbers})


def summary(numbers: Mapping[str, Any]) -> str:
  """Describe the best score and the last accuracies in a sentence."""
  train, valid = numbers['train'], numbers['valid']
  said = f'{train["steps"][-1]:,} updates'
  if not valid:
    return f'{said}, not validated yet.'
  best = max(map(_score, valid.get('bleu', [None])))
  if best > -math.inf:
    at = valid['steps'][list(map(_score, valid['bleu'])).index(best)]
    said += f'; the best validation BLEU is {best:.2f}, at update {at:,}'
  if numbers['gap'] and (gap := numbers['gap'][-1]) is not None:
    said += (
      f'; accuracy {valid["accuracy"][-1]:.3f} on the validation text, '
      f'{abs(gap):.3f} {"below" if gap > 0 else "above"} that on the training '
      'text'
    )
  return f'{said}.'


def look(subject: RunWithText) -> ViewResult:
  """Read the curves, and summarise and draw them."""
  numbers = curves(subject)
  return ViewResult(numbers, lambda: draw(numbers), summary(numbers))


def _columns(
  rows: Sequence[Mapping[str, Any]], fields: Iterable[str]
) -> dict[str, list[int | float | None]]:
  columns = {'steps': [row['step'] for row in rows]}
  for field in fields:
    if any(field in row for row in rows):
      columns[field] = [row.get(field) for row in rows]
  return columns


def _gap(
  train: Mapping[str, list], valid: Mapping[str, list]
) -> list[float | None]:
  """Subtract validation from training accuracy at every validation."""
  logged = train.get('accuracy', [])
  gaps = []
  for step, reached in zip(
    valid.get('steps', []), valid.get('accuracy', []), strict=False
  ):
    index = bisect.bisect_right(train['steps'], step) - 1
    before = logged[index] if logged and index >= 0 else None
    known = before is not None and reached is not None
    gaps.append(before - reached if known else None)
  return gaps


def _lines(numbers: Mapping[str, Any], field: str) -> dict[str, figures.Line]:
  """Return the curves of a number: validation, training, or both."""
  return {
    name: (columns['steps'], list(map(figures.drawn, columns[field])))
    for kind, name in _NAMES.items()
    if field in (columns := numbers[kind])
  }


def _score(value: int | float | None) -> int | float:
  return -math.inf if value is None else value


VIEW = View(
  name='curves',
  title='Curves of the training',
  source='Wang et al. 2018, Fig. 4',
  reading=(
    'Over the updates: solid on the validation text, dashed on the training '
    'text, where dropout is on, as a mean since the point before. The loss of '
    'the training is the one that was minimised, with label smoothing; that of '
    'the validation is without it. BLEU and chrF are of the first '
    'training.translate_sentences lines, with a beam of '
    'training.translate_beam.'
  ),
  look=look,
  reads='metrics',
)
