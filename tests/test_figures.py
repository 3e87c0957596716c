"""What all figures share: letters of other scripts, and files."""

import base64
import itertools
import resource
import warnings

import numpy as np
import pytest
from matplotlib import font_manager

from fusion_jax import figures
from fusion_jax.errors import InputError


def _figure(title):
  figure, (axes,) = figures.panels(1)
  axes.set_title(title)
  return figure


def test_letters_without_a_font_are_one_line(monkeypatch, tmp_path, caplog):
  monkeypatch.setattr(figures, '_look', lambda: {'font.family': 'DejaVu Sans'})
  figures.save(_figure('日本 and 日'), tmp_path / 'x')
  # One for each file.
  assert [record.message.split(' letters')[0] for record in caplog.records] == [
    'a figure shows boxes for 2',
    'a figure shows boxes for 2',
  ]
  caplog.clear()
  figures.save(_figure('é ß Ω ж'), tmp_path / 'x')
  assert not caplog.records


def test_a_full_disk_leaves_the_figures_that_were_there(tmp_path):
  figures.save(_figure('old'), tmp_path / 'x')
  before = {path: path.read_bytes() for path in tmp_path.iterdir()}
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  # A file that grows to so many bytes fails as one on a full disk does.
  resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
  try:
    with pytest.raises(InputError, match=r'x\.png: cannot be written'):
      figures.save(_figure('new'), tmp_path / 'x')
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_other_warnings_are_kept(monkeypatch):
  def savefig(self, *given, **options):
    warnings.warn('something else', UserWarning, stacklevel=1)

  figure = _figure('x')
  monkeypatch.setattr(type(figure), 'savefig', savefig)
  with pytest.warns(UserWarning, match='something else'):
    figures.encoded(figure, 'svg')


@pytest.mark.parametrize('installed', [True, False])
def test_fonts_that_are_there_are_used(monkeypatch, installed):
  class _Font:
    name = 'IPAGothic' if installed else 'Any'
    fname = '/fonts/one.ttf'

  monkeypatch.setattr(font_manager.fontManager, 'ttflist', [_Font])
  families = figures._look.__wrapped__()['font.family']
  assert families == ['DejaVu Sans', *['IPAGothic'] * installed]


def _drawn(figure):
  """The axes, and the boxes of the legends, in pixels."""
  figure.draw_without_rendering()
  boxes = [axes.get_window_extent() for axes in figure.axes]
  legends = [axes.get_legend() for axes in figure.axes] + figure.legends
  return boxes, [each.get_window_extent() for each in legends if each]


def _assert_apart(figure, count):
  boxes, legends = _drawn(figure)
  assert len(legends) == count
  for legend in legends:
    assert not any(legend.overlaps(box) for box in boxes)
    assert figure.bbox.x0 <= legend.x0 < legend.x1 <= figure.bbox.x1 + 1


_LINES = {f'line {n}': ([1, 2, 3], [n, n + 1, n]) for n in range(9)}


def test_legends_cover_no_axes():
  figure, axes = figures.panels(2)
  figures.draw_lines(axes[0], _LINES, 'x', 'y')
  figures.draw_bars(
    axes[1], ['a', 'b'], {'one': [1.0, 2.0], 'two': [3.0, 4.0]}, 'x', ''
  )
  _assert_apart(figure, 2)


@pytest.mark.parametrize('name', ['short', 'a name of a run that is long ' * 2])
def test_a_shared_legend_fits_below(name):
  figure, axes = figures.panels(2)
  lines = {f'{name}, {n}': line for n, line in enumerate(_LINES.values())}
  for panel in axes:
    figures.draw_lines(panel, lines, 'x', 'y')
  figures.share_legend(figure, axes)
  _assert_apart(figure, 1)


def test_lines_differ_in_colour_and_marker():
  _, (axes,) = figures.panels(1)
  figures.draw_lines(axes, _LINES, 'x', 'y', dashed={'line 1': 'line 0'})
  looks = [(line.get_color(), line.get_marker()) for line in axes.lines]
  assert len(set(looks)) == 8
  assert all(marker != 'None' for _, marker in looks)
  assert looks[0] == looks[1]
  assert looks[0][0] != looks[2][0]
  assert looks[0][1] != looks[2][1]
  dashes = [line.get_linestyle() for line in axes.lines]
  assert dashes == ['-', '--', *['-'] * 7]


def test_long_lines_have_few_markers_and_empty_ones_keep_their_look():
  _, (axes,) = figures.panels(1)
  lines = {'none': ([], []), 'long': (range(1_000), range(1_000))}
  figures.draw_lines(axes, lines, 'x', 'y')
  (line,) = axes.lines
  assert line.get_markevery() == 50
  assert (line.get_color(), line.get_marker()) == (
    figures.COLOURS[1],
    figures.MARKERS[1],
  )
  assert axes.get_legend() is None


def test_the_first_row_of_a_map_is_above_or_below():
  _, axes = figures.panels(2)
  values = np.array([[0.0, 1.0], [2.0, 3.0]])
  for panel, upwards in zip(axes, (False, True), strict=True):
    names = ['low', 'high']
    figures.draw_map(panel, values, names, (), 'x', 'y', '', upwards=upwards)
    bottom, top = panel.get_ylim()
    assert (bottom < top) == upwards
    assert [each.get_text() for each in panel.get_yticklabels()] == names
    assert panel.texts[0].get_position() == (0, 0)


@pytest.mark.parametrize(
  ('values', 'limits'),
  [
    # All cells say 0.33, and all have the colour of the middle.
    ([0.3330, 0.3334, 0.3338], (0.2834, 0.3834)),
    ([0.25, 0.25, np.nan], (0.2, 0.3)),
    ([0.0, 0.5, 1.0], (0.0, 1.0)),
    ([np.nan, np.nan, np.nan], (0.0, 0.1)),
  ],
)
def test_numbers_that_hardly_differ_have_hardly_other_colours(values, limits):
  _, (axes,) = figures.panels(1)
  figures.draw_map(axes, np.array([values]), ('a',), (), 'x', 'y', '')
  assert axes.images[0].get_clim() == pytest.approx(limits)


@pytest.mark.parametrize(
  ('values', 'expected'),
  [
    ([0.055, 0.085], ['0.06', '0.07', '0.08']),
    ([0.00002, 0.03], ['0.0001', '0.001', '0.01']),
    ([0.5, 20_000], ['1', '10', '100', '1000', '10000']),
  ],
)
def test_ticks_of_a_logarithmic_axis_are_plain_numbers(values, expected):
  figure, (axes,) = figures.panels(1)
  axes.plot([1, 2], values)
  figures.make_logarithmic(axes)
  figure.draw_without_rendering()
  low, high = axes.get_ylim()
  ticks = axes.yaxis.get_major_ticks() + axes.yaxis.get_minor_ticks()
  shown = {
    tick.label1.get_text(): tick.get_loc()
    for tick in ticks
    if low <= tick.get_loc() <= high
  }
  assert set(expected) <= shown.keys()
  for text, place in shown.items():
    if text:
      assert float(text) == pytest.approx(place)
      assert 'e' not in text


def test_panels_are_files_of_one_width_and_the_legend_is_first():
  figure, axes = figures.panels(3)
  for panel in axes[:2]:
    figures.draw_lines(panel, _LINES, 'x', 'y')
  figures.share_legend(figure, axes[:2])
  figures.draw_map(axes[2], np.eye(2), ('a', 'b'), (), 'x', 'the map', 'unit')
  legend, *others = figures.as_panels(figure)
  assert [each.is_legend for each in (legend, *others)] == [True] + [False] * 3
  assert b'line 8' in _content(legend, 'svg+xml')
  # A panel has 4.4 inches of 96 pixels.
  assert [each.width for each in others] == [422] * 3
  contents = [_content(each, 'svg+xml') for each in others]
  assert [b'the map' in content for content in contents] == [False, False, True]
  # The colours belong to the map, and are no panel of their own.
  assert b'unit' in contents[2]


def _content(picture, kind):
  before, content = picture.address.split(',')
  assert before == f'data:image/{kind};base64'
  return base64.b64decode(content)


def test_a_large_panel_is_a_png(monkeypatch):
  monkeypatch.setattr(figures, '_LARGEST_SVG', 100)
  (panel,) = figures.as_panels(_figure('x'))
  assert _content(panel, 'png').startswith(b'\x89PNG')


@pytest.mark.parametrize('last', [9, 20, 999, 7_200, 100_000])
def test_numbers_below_lines_do_not_overlap(last):
  figure, (axes,) = figures.panels(1)
  figures.draw_lines(axes, {'loss': ([0, last], [1.0, 2.0])}, 'update', 'loss')
  figure.canvas.draw()
  left, right = axes.get_xlim()
  boxes = [
    label.get_window_extent()
    for tick, label in zip(
      axes.get_xticks(), axes.get_xticklabels(), strict=True
    )
    if left <= tick <= right
  ]
  assert len(boxes) > 2
  for before, after in itertools.pairwise(boxes):
    assert before.x1 < after.x0
