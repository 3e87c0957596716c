"""Values logged over the training: curves, and gradients of the layers.

Wang et al. (2018), Fig. 4: accuracy on the training text against accuracy on
the validation text shows how much a model over-fits. Yang et al. (2022), Eq. 8
and Fig. 11: fusing groups balances the gradients of low and high layers.
"""

import bisect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from fusion_jax import figures
from fusion_jax.analysis.run_with_text import Numbers, RunWithText, numbered
from fusion_jax.config.fusion import SIDES
from fusion_jax.errors import InputError

# Fields of lines of kind 'train' and of kind 'valid'.
_TRAIN = (
  *('accuracy', 'loss', 'perplexity', 'learning_rate'),
  *('tokens_per_second', 'peak_memory'),
)
_VALID = 'accuracy', 'loss', 'perplexity', 'bleu', 'chrf'
# Field of each panel, label of its axis, and the axis: logarithmic, from 0, or
# over the values.
_PANELS = (
  ('accuracy', 'accuracy (share of target tokens)', 'values'),
  ('loss', 'loss (nats; training: smoothed)', 'values'),
  ('perplexity', 'perplexity a target token', 'log'),
  ('bleu', 'BLEU, {translated}', 'zero'),
  ('chrf', 'chrF, {translated}', 'zero'),
  ('learning_rate', 'learning rate', 'values'),
)
# The top of an axis from 0, in units of the highest value.
_ABOVE = 1.05
# Most lines of a panel of gradients.
_MOST_LINES = 5
_NAMES = {'valid': 'validation', 'train': 'training'}
# Weights among the numbers of kind 'fusion': reader and source. Those of groups
# have a view of their own.
_WEIGHTS = re.compile(
  r'(?!decoder/prediction)(.+/(?:exploitation|hop_attention_\d+|layer_norms|'
  r'layer_weights|weights(?:_\d+)?(?:_[a-z_]+)?))_(\d+)'
)
# Transparent attention logs its weights by layer, then by reader.
_BY_LAYER = re.compile(r'(.+/read_out/weights)_(\d+)_(\d+)')
# Letters of a line of their titles.
_TITLE = 40
# Most panels of the weights of a side: those of its highest readers.
_MOST_READERS = 3


def curves(analysed: RunWithText) -> Numbers:
  """Read the numbers of the training and of its validations, by update."""
  train = _columns(analysed.of_kind('train'), _TRAIN)
  rows = [row for row in analysed.metrics if row['kind'] == 'valid']
  valid = _columns(rows, _VALID) if rows else {}
  fusion = [row for row in analysed.metrics if row['kind'] == 'fusion']
  training = analysed.run.config.training
  count = training.translate_sentences
  lines = f'first {count:,} lines' if count else 'all lines'
  return {
    'train': train,
    'valid': valid,
    'gap': _gap(train, valid),
    'translated': f'{lines}, beam {training.translate_beam}',
    'weights': _weights(fusion) if len(fusion) > 1 else {},
  }


def _weights(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
  """Return the weights that each reader gives its sources, as lines."""
  steps = [row['step'] for row in rows]
  readers: dict[str, dict[str, Any]] = {}
  for name in rows[-1]:
    if match := _WEIGHTS.fullmatch(_BY_LAYER.sub(r'\1_\3_\2', name)):
      line = steps, [row.get(name) for row in rows]
      readers.setdefault(match[1], {})[f'source {match[2]}'] = line
  several = [name for name, lines in readers.items() if len(lines) > 1]
  several.sort(key=lambda x: [n.zfill(9) for n in re.split(r'(\d+)', x)])
  sides = [[x for x in several if x.startswith(side)] for side in SIDES]
  return {x: readers[x] for side in sides for x in side[-_MOST_READERS:]}


def draw_runs(runs: Mapping[str, Mapping[str, Any]]) -> figures.Figure:
  """Draw the curves of one or more runs, overlaid, and weights of layers."""
  named = {run: f'{run}, ' if len(runs) > 1 else '' for run in runs}
  dashed = {
    f'{name}{_NAMES["train"]}': f'{name}{_NAMES["valid"]}'
    for name in named.values()
  }
  translated = {numbers['translated'] for numbers in runs.values()}
  said = translated.pop() if len(translated) == 1 else 'each as its config says'
  panels = []
  for field, label, _ in _PANELS:
    lines, y = _lines(runs, named, field), label.format(translated=said)
    given = lines, 'update', y, dashed
    panels.append(figures.Panel('', figures.draw_lines, *given))
  for run, name in named.items():
    for reader, lines in runs[run]['weights'].items():
      title = textwrap.fill(f'{name}{reader}', _TITLE)
      labels = 'update', 'weight of a source'
      panels.append(figures.Panel(title, figures.draw_lines, lines, *labels))
  figure = figures.draw_panels(panels)
  _scale(figure.axes[: len(_PANELS)])
  figures.share_legend(figure, figure.axes[: len(_PANELS)])
  return figure


def _scale(axes: Sequence[figures.Axes]) -> None:
  """Give the panels one x axis, and each the y axis of its field."""
  starts, ends = zip(*(panel.get_xlim() for panel in axes), strict=True)
  for panel, (_, _, axis) in zip(axes, _PANELS, strict=True):
    if axis == 'log':
      figures.make_logarithmic(panel)
    elif axis == 'zero':
      highest = panel.dataLim.y1
      panel.set_ylim(0, _ABOVE * highest if highest > 0 else 1)
    panel.set_xlim(min(starts), max(ends))


def draw_curves(numbers: Numbers) -> figures.Figure:
  """Draw the curves of one run."""
  return draw_runs({'run': numbers})


def curves_summary(numbers: Numbers) -> str:
  """Describe the best score and the last accuracies in a sentence."""
  train, valid = numbers['train'], numbers['valid']
  said = f'{train["steps"][-1]:,} updates'
  if not valid:
    return f'{said}, not validated yet.'
  scored = zip(valid['steps'], valid.get('bleu', []), strict=False)
  bleu = {step: score for step, score in scored if score is not None}
  if bleu:
    step = max(bleu, key=lambda step: bleu[step])
    best = f'{bleu[step]:.2f}, at update {step:,} ({numbers["translated"]})'
    said += f'; the best validation BLEU is {best}'
  if numbers['gap'] and (gap := numbers['gap'][-1]) is not None:
    said += (
      f'; accuracy {valid["accuracy"][-1]:.3f} on the validation text, '
      f'{abs(gap):.3f} {"below" if gap > 0 else "above"} that on the training '
      'text'
    )
  return f'{said}.'


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
  logged, gaps = train.get('accuracy', []), []
  every = valid.get('steps', []), valid.get('accuracy', [])
  for step, reached in zip(*every, strict=False):
    index = bisect.bisect_right(train['steps'], step) - 1
    before = logged[index] if logged and index >= 0 else None
    known = before is not None and reached is not None
    gaps.append(before - reached if known else None)
  return gaps


def _lines(
  runs: Mapping[str, Mapping[str, Any]], named: Mapping[str, str], field: str
) -> dict[str, figures.Line]:
  """Return the curves of a number, empty where it was not logged."""
  lines: dict[str, figures.Line] = {}
  for run, numbers in runs.items():
    for kind, name in _NAMES.items():
      values = numbers[kind].get(field, [])
      steps = numbers[kind]['steps'] if values else []
      lines[f'{named[run]}{name}'] = steps, values
  return lines


def gradients(analysed: RunWithText) -> Numbers:
  """Read the logged norms by layer."""
  rows = analysed.of_kind('train')
  layers = numbered(rows, 'encoder_gradient_norm_')
  if not layers:
    raise InputError(
      f'{analysed.workdir}/metrics.jsonl: has no encoder_gradient_norm_1; an '
      'older version wrote it'
    )
  return {'steps': [row['step'] for row in rows], 'layers': layers}


def draw_gradients(numbers: Numbers) -> figures.Figure:
  """Draw a line per layer over updates, and a line per update over layers."""
  steps, layers = numbers['steps'], numbers['layers']
  shown = [list(layers)[place] for place in _spread(len(layers))]
  over_updates = {f'layer {name}': (steps, layers[name]) for name in shown}
  numbered_layers = list(map(int, layers))
  over_layers = {
    f'update {steps[place]:,}': (
      numbered_layers,
      [norms[place] for norms in layers.values()],
    )
    for place in _spread(len(steps))
  }
  lines, y = figures.draw_lines, 'gradient norm'
  figure = figures.draw_panels(
    [
      figures.Panel('', lines, over_updates, 'update', y),
      figures.Panel('', lines, over_layers, 'encoder layer', y),
    ]
  )
  for panel in figure.axes:
    figures.make_logarithmic(panel)
  return figure


def gradients_summary(numbers: Numbers) -> str:
  """List the last norms."""
  lasts = (norms[-1] for norms in numbers['layers'].values())
  listed = ', '.join('?' if last is None else f'{last:.3g}' for last in lasts)
  return (
    f'At update {numbers["steps"][-1]:,} the norms of the encoder layers, from '
    f'the lowest, are {listed}.'
  )


def _spread(count: int) -> Int[np.ndarray, ' n']:
  """Return at most five indices of a list, including first and last."""
  most = min(count, _MOST_LINES)
  return np.linspace(0, count - 1, most).round().astype(int)
