"""The curves of a training, from metrics that are written by hand."""

import json

import pytest
from report_runs import TRAINED, fused_run, write_metrics

from fusion_jax.analysis import curves
from fusion_jax.analysis.views import VIEWS

CURVES, GRADIENTS = VIEWS['curves'], VIEWS['gradients']


def test_numbers_by_hand(tmp_path):
  numbers = curves.curves(fused_run(tmp_path))
  assert numbers['train'] == {
    'steps': [10, 20, 30],
    'accuracy': [0.25, 0.5, 0.75],
    'loss': [4.0, 3.0, 2.0],
    'perplexity': [50.0, None, 7.0],
    'learning_rate': [1e-3] * 3,
  }
  assert numbers['valid']['steps'] == [20, 25, 30]
  assert numbers['valid']['bleu'] == [3.0, 4.5, 4.0]
  # 0.5 - 0.375 at update 20, unknown at 25, 0.75 - 0.875 at 30.
  assert numbers['gap'] == [0.125, None, -0.125]
  json.dumps(numbers, allow_nan=False)


def test_the_summary_names_the_best_and_the_last(tmp_path):
  finding = CURVES.look(fused_run(tmp_path))
  assert finding['summary'] == (
    '30 updates; the best validation BLEU is 4.50, at update 25 (all lines, '
    'beam 1); accuracy 0.875 on the validation text, 0.125 above that on the '
    'training text.'
  )


def test_before_the_first_validation(tmp_path):
  analysed = fused_run(tmp_path)
  write_metrics(tmp_path, validated=[])
  finding = CURVES.look(analysed)
  assert finding['numbers']['valid'] == {}
  assert finding['summary'] == '30 updates, not validated yet.'
  accuracy = CURVES.draw(finding['numbers']).axes[0]
  assert [list(line.get_ydata()) for line in accuracy.lines] == [
    [0.25, 0.5, 0.75]
  ]


def _look_of(line):
  return line.get_color(), line.get_marker()


def _told(figure):
  (legend,) = figure.legends
  return [text.get_text() for text in legend.get_texts()]


def test_solid_is_validation_and_dashed_training(tmp_path):
  figure = CURVES.draw(CURVES.measure(fused_run(tmp_path)))
  assert len(figure.axes) == 6
  assert figure.axes[3].get_ylabel() == 'BLEU, all lines, beam 1'
  # BLEU is drawn from 0 to above its highest point, 4.5; so is chrF.
  assert figure.axes[3].get_ylim() == pytest.approx((0, 1.05 * 4.5))
  assert figure.axes[4].get_ylim()[0] == 0
  valid, train = figure.axes[0].lines
  assert (valid.get_linestyle(), train.get_linestyle()) == ('-', '--')
  assert list(valid.get_xdata()) == [20, 25, 30]
  assert list(train.get_ydata()) == [0.25, 0.5, 0.75]
  assert _look_of(valid) == _look_of(train)
  assert _told(figure) == ['validation', 'training']
  # BLEU is of the validation alone, the learning rate of the training.
  assert _look_of(figure.axes[3].lines[0]) == _look_of(valid)
  assert _look_of(figure.axes[5].lines[0]) == _look_of(train)


def test_runs_are_overlaid_in_colours_of_their_own(tmp_path):
  numbers = curves.curves(fused_run(tmp_path))
  figure = curves.draw_runs({'one': numbers, 'two': numbers})
  lines = figure.axes[0].lines
  names = ['one, validation', 'one, training']
  names += ['two, validation', 'two, training']
  assert [line.get_label() for line in lines] == names == _told(figure)
  assert [line.get_linestyle() for line in lines] == ['-', '--'] * 2
  one, one_trained, two, two_trained = map(_look_of, lines)
  assert one == one_trained != two == two_trained


_LOGGED = (
  # Of dlcl: the first row reads one layer.
  'encoder/connection/weights_0_0',
  *(
    f'encoder/connection/weights_{n}_{i}' for n in (1, 2, 9, 10) for i in (0, 1)
  ),
  # Of transparent attention: layer 0 and 1, read by the layers 0 and 1.
  *(f'encoder/read_out/weights_{i}_{j}' for i in (0, 1) for j in (0, 1)),
  # No weights of layers, or those of a view of their own.
  'decoder/read_out/coupling_entropy_0',
  'decoder/prediction/layer_weights_0',
  'decoder/prediction/layer_weights_1',
)


def _log_fusion(workdir, steps):
  rows = [
    {'step': step, 'kind': 'fusion'}
    | {name: step + place / 100 for place, name in enumerate(_LOGGED)}
    for step in steps
  ]
  with (workdir / 'metrics.jsonl').open('a') as file:
    file.writelines(f'{json.dumps(row)}\n' for row in rows)


def test_weights_of_layers_are_drawn_over_the_training(tmp_path):
  analysed = fused_run(tmp_path)
  _log_fusion(tmp_path, [20, 30])
  finding = CURVES.look(analysed)
  readers = finding['numbers']['weights']
  # The last three of those with two layers or more.
  assert list(readers) == [
    'encoder/connection/weights_10',
    'encoder/read_out/weights_0',
    'encoder/read_out/weights_1',
  ]
  place = _LOGGED.index('encoder/read_out/weights_1_0') / 100
  assert readers['encoder/read_out/weights_0']['source 1'] == (
    [20, 30],
    [20 + place, 30 + place],
  )
  others = CURVES.draw(finding['numbers']).axes[6:]
  assert [panel.get_title() for panel in others] == list(readers)
  line = others[1].lines[1]
  assert line.get_label() == 'source 1'
  assert list(line.get_xdata()) == [20, 30]
  assert list(line.get_ydata()) == [20 + place, 30 + place]


def test_weights_that_were_logged_once_are_not_drawn(tmp_path):
  analysed = fused_run(tmp_path)
  _log_fusion(tmp_path, [20])
  assert len(CURVES.draw(CURVES.measure(analysed)).axes) == 6


def test_gradient_norms_of_many_layers_stay_legible(tmp_path):
  analysed = fused_run(tmp_path)
  norms = {f'encoder_gradient_norm_{n}': 1.0 / n for n in range(1, 31)}
  write_metrics(tmp_path, trained=[row | norms for row in TRAINED])
  finding = GRADIENTS.look(analysed)
  assert list(finding['numbers']['layers']) == [str(n) for n in range(1, 31)]
  over_updates, over_layers = GRADIENTS.draw(finding['numbers']).axes
  names = [line.get_label() for line in over_updates.lines]
  assert names[0] == 'layer 1'
  assert names[-1] == 'layer 30'
  assert len(names) == 5
  last = over_layers.lines[-1]
  assert last.get_label() == 'update 30'
  assert list(last.get_ydata()) == list(norms.values())
