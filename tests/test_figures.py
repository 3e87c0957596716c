"""What all figures share: letters of other scripts, and files."""

import warnings

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


def test_other_warnings_are_kept(monkeypatch):
  def savefig(self, *given, **options):
    warnings.warn('something else', UserWarning, stacklevel=1)

  figure = _figure('x')
  monkeypatch.setattr(type(figure), 'savefig', savefig)
  with pytest.warns(UserWarning, match='something else'):
    figures.as_svg(figure)


@pytest.mark.parametrize('installed', [True, False])
def test_fonts_that_are_there_are_used(monkeypatch, installed):
  class _Font:
    name = 'IPAGothic' if installed else 'Any'
    fname = '/fonts/one.ttf'

  monkeypatch.setattr(font_manager.fontManager, 'ttflist', [_Font])
  monkeypatch.setattr(font_manager, 'findSystemFonts', lambda: [_Font.fname])
  families = figures._look.__wrapped__()['font.family']
  assert families == ['DejaVu Sans', *['IPAGothic'] * installed]


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
  with pytest.raises(InputError, match='No such file'):
    figures.save(_figure('x'), tmp_path / 'none' / 'x')
