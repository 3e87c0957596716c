"""The figure of a comparison."""

from fusion_jax import figures
from fusion_jax.evaluation.compare_figure import draw


def _bucket(name, count, score):
  scores = {'base': score, 'new': score}
  return {'bucket': name, 'count': count, 'scores': scores}


def _numbers(*buckets):
  seeds = {'scores': [20.0, 21.0]}
  return {
    'systems': {'base': ['a', 'b'], 'new': ['c', 'd']},
    'tests': {},
    'seeds': {'BLEU': {'base': seeds, 'new': seeds}},
    'lengths': {'bounds': list(buckets)},
    'frequencies': {'buckets': [_bucket('1', 5, 50.0)]},
  }


def test_empty_buckets_are_not_drawn():
  empty = _bucket('1-15', 0, None)
  figure = draw(_numbers(empty, _bucket('16-30', 7, 20.0), empty))
  scores, lengths, _ = figure.axes
  names = [label.get_text() for label in lengths.get_xticklabels()]
  assert names == ['16-30\n(7)']
  assert len(lengths.patches) == 2
  assert lengths.get_ylim()[0] == 0
  assert scores.get_xlabel() == 'BLEU (the axis does not start at 0)'


def test_a_text_without_a_word_has_a_figure(tmp_path):
  figure = draw(_numbers(_bucket('1-15', 0, None)))
  assert not figure.axes[1].patches
  png, _ = figures.save(figure, tmp_path / 'figure')
  assert png.stat().st_size > 0
