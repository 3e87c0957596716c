"""Pages of runs that are made by hand."""

import dataclasses
import json
import re

import pytest
from report_runs import (
  MODEL,
  OTHER,
  TEXT,
  Page,
  report_of,
  subject_of,
)

from fusion_jax import figures
from fusion_jax.analysis.report import views as report_views
from fusion_jax.analysis.report.page import page
from fusion_jax.analysis.view_result import View
from fusion_jax.analysis.views import views_of
from fusion_jax.config.fusion import (
  MultiLayerOptions,
  ShortcutOptions,
  SideConfig,
)
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES

_SECTIONS = [
  'runs',
  'scores',
  'lengths',
  'training',
  'views',
  'translations',
  'options',
  'data',
  'parameters',
  'environment',
]


def _models():
  """Every scheme on every side it has, and what is inside the attention."""
  sides = {
    f'{name}-{side}': {side: SideConfig(fusion=name)}
    for name, scheme in SCHEMES.items()
    for side in scheme.modules
  } | {
    'none': {},
    'shortcut': {'encoder': SideConfig(shortcut=ShortcutOptions('lexical'))},
    'multi_layer': {
      'decoder': SideConfig(multi_layer=MultiLayerOptions(2)),
      'decoder_layers': 3,
    },
  }
  return {
    name: dataclasses.replace(MODEL, **each) for name, each in sides.items()
  }


_MODELS = _models()


_SVG = b'<svg xmlns="" width="72pt" height="72pt"/>'


@pytest.fixture
def quick(monkeypatch):
  """Pages whose own figures are not drawn, which takes seconds."""
  monkeypatch.setattr(figures, 'as_svg', lambda figure: _SVG)


def _slow_view(look=lambda subject: pytest.fail('it is slow')):
  return View(
    name='slow_one',
    title='A slow one',
    source='Someone <et al.> 2020',
    reading='It takes long & is slow.',
    look=look,
    slow=True,
  )


def _store(folder, view, steps=(30,), **more):
  """The files of a view, as `look_at` leaves them."""
  folder.mkdir(exist_ok=True)
  for kind in ('svg', 'png'):
    (folder / f'{view.name}.{kind}').write_bytes(_SVG)
  written = {
    'step': max(steps),
    'steps': steps,
    'summary': f'{view.name} <seen>',
    'numbers': {'value': [1.5, None]},
  }
  (folder / f'{view.name}.json').write_text(json.dumps(written | more))


def _stored(view, subject, folder):
  """In place of `look_at`."""
  _store(folder, view)


def _page(runs, text=TEXT):
  return page(runs, text, 'the text', 12, {'jax': '1 < 2'})


def _cards(subject, folder, slow=False):
  return list(report_views.cards(subject, folder, slow))


@pytest.mark.parametrize('name', _MODELS)
@pytest.mark.usefixtures('quick')
def test_every_view_of_a_scheme_is_named(name, tmp_path, monkeypatch):
  slow = _slow_view()
  model = _MODELS[name]
  every = [*views_of(model), slow]
  monkeypatch.setattr(report_views, 'views_of', lambda config: every)
  monkeypatch.setattr(report_views, 'look_at', _stored)
  subject = subject_of(tmp_path, model)
  found = _cards(subject, tmp_path / 'analysis')
  assert [card.view for card in found] == every
  html = Page(_page([report_of(subject, found)]))
  for card in found:
    view = card.view
    assert view.title in html.words['h2'] + html.words['h3']
    if view.slow:
      assert f'fusion_jax.analysis {view.name} --workdir=' in html.text
    else:
      # 72 points are an inch of 96 pixels.
      assert card.figure.width == 96
      assert any(view.title in image['alt'] for image in html.all('img'))
    assert view.source in html.text
    assert view.reading in html.text
  if source := getattr(SCHEMES.get(name.rpartition('-')[0]), 'source', ''):
    assert source in html.text
  assert 'lexical shortcuts' in html.text or name != 'shortcut'
  assert 'attention over 2 layers' in html.text or name != 'multi_layer'


def test_views_of_other_checkpoints_are_made_anew(tmp_path, monkeypatch):
  made = []
  view = dataclasses.replace(_slow_view(), slow=False)
  monkeypatch.setattr(report_views, 'views_of', lambda config: [view])
  monkeypatch.setattr(
    report_views,
    'look_at',
    lambda view, subject, folder: (
      made.append(view.name),
      _store(folder, view),
    ),
  )
  subject = subject_of(tmp_path)
  for steps, count in (((30,), 0), ((20,), 1), ((20, 30), 2), ((30,), 2)):
    _store(tmp_path, view, steps)
    (card,) = _cards(subject, tmp_path)
    assert card.found['steps'] == [30]
    assert len(made) == count
  (tmp_path / 'slow_one.svg').unlink()
  _cards(subject, tmp_path)
  assert len(made) == 3
  (tmp_path / 'slow_one.json').write_text('{"step": 30')
  _cards(subject, tmp_path)
  assert len(made) == 4


@pytest.mark.usefixtures('quick')
def test_a_view_that_cannot_be_made_says_why(tmp_path, monkeypatch):
  def look(subject):
    raise InputError('there is no <light>')

  view = _slow_view(look)
  monkeypatch.setattr(report_views, 'views_of', lambda config: [view])
  subject = subject_of(tmp_path)
  (card,) = _cards(subject, tmp_path, slow=True)
  assert card.missing == 'It could not be made: there is no <light>.'
  text = Page(_page([report_of(subject, [card])])).text
  assert card.missing in text
  assert 'analysis slow_one --workdir=runs/one' in text


@pytest.mark.usefixtures('quick')
def test_a_view_of_another_text_says_so(tmp_path, monkeypatch):
  view = _slow_view()
  monkeypatch.setattr(report_views, 'views_of', lambda config: [view])
  subject = subject_of(tmp_path)
  _store(tmp_path, view, text={'source': 'a.en', 'target': 'a.de', 'lines': 7})
  html = Page(_page([report_of(subject, _cards(subject, tmp_path))]))
  said = 'slow_one <seen> (Of the first 7 lines of a.en.)'
  assert said in html.words['p']


@pytest.mark.usefixtures('quick')
def test_the_sections_of_a_page(tmp_path):
  html = Page(_page([report_of(subject_of(tmp_path))]))
  ids = html.ids()
  assert len(ids) == len(set(ids))
  assert [name for name in ids if not name.startswith('view-')] == _SECTIONS
  links = [each['href'] for each in html.all('a') if 'download' not in each]
  assert links == [f'#{name}' for name in _SECTIONS]
  for said in ('1,200, 1,100 after filtering', '75.0%', 'nrefs:1|', '1 < 2'):
    assert said in html.text
  assert html.all('html') == [{'lang': 'en'}]
  assert html.words['title'] == ['run - fusion_jax']


@pytest.mark.usefixtures('quick')
def test_text_is_shown_as_it_is(tmp_path):
  made = ('<img src=x onerror=alert(1)>', '&lt;', '</dd>', '"\'')
  html = Page(_page([report_of(subject_of(tmp_path), made=made)]))
  # The page would have these elements if a line were not escaped.
  assert not html.all('script')
  assert not html.all('b')
  assert all('onerror' not in each for each in html.all('img'))
  for line in (*made, *(line for pair in TEXT for line in pair)):
    assert line in html.text
  assert 'runs/<one>' in html.text


def test_nothing_is_fetched(tmp_path):
  whole = _page([report_of(subject_of(tmp_path))])
  html = Page(whole)
  for tag, attributes in html.tags:
    assert tag not in ('link', 'script', 'iframe', 'object', 'base')
    if 'src' in attributes:
      assert attributes['src'].startswith('data:image/')
    if 'href' in attributes:
      assert attributes['href'].startswith(('#', 'data:application/json;'))
  assert not re.search(r'https?://|@import|url\(', whole)
  policy = [each for each in html.all('meta') if 'http-equiv' in each]
  assert policy[0]['content'].startswith("default-src 'none';")


@pytest.mark.usefixtures('quick')
def test_every_figure_has_words_and_numbers(tmp_path):
  html = Page(_page([report_of(subject_of(tmp_path))]))
  figures_shown = html.all('figure')
  assert len(html.all('img')) == len(figures_shown) == 2
  assert all(len(each['alt']) > 20 for each in html.all('img'))
  assert len(html.words['figcaption']) == len(figures_shown)
  assert {each.get('download') for each in html.all('a')} >= {
    'lengths.json',
    'curves.json',
    'translations.json',
  }


@pytest.mark.usefixtures('quick')
def test_differences_are_marked(tmp_path):
  subject = subject_of(tmp_path)
  first, second = (
    report_of(subject, name='one', made=OTHER),
    report_of(subject, name='two', made=[pair[1] for pair in TEXT]),
  )
  html = Page(_page([first]))
  # The first is that of the legend.
  assert html.words['mark'][1:] == ['<i>Katze</i>', 'Katers']
  marks = Page(_page([first, second]))
  kinds = [each['class'] for each in marks.all('mark')]
  assert kinds == [
    'off-reference', 'off-first', 'off-reference', 'off-first',
    'off-reference', 'off-first', 'off-first', 'off-first',
  ]  # fmt: skip
  assert marks.words['mark'][-2:] == ['eine', 'Welt']


@pytest.mark.usefixtures('quick')
def test_a_comparison_shows_both(tmp_path):
  subject = subject_of(tmp_path)
  one = report_of(subject, name='one')
  wide = dataclasses.replace(
    one.config, model=dataclasses.replace(MODEL, norm='pre')
  )
  two = dataclasses.replace(
    report_of(subject, name='two', made=[pair[1] for pair in TEXT]),
    config=wide,
  )
  whole = _page([one, two])
  html = Page(whole)
  assert html.words['h1'] == ['one, two']
  difference = 100 - one.scores.bleu
  assert f'{difference:+.2f}' in html.words['td']
  assert 'BLEU less one' in html.words['th']
  rows = re.search(r'Where the runs differ.*?</table>', whole, re.DOTALL)[0]
  assert re.findall(r'<t[dh]\b[^>]*>([^<]*)', rows.replace('<wbr>', '')) == [
    'option', 'one', 'two', 'default', 'model.norm', 'post', 'pre', 'post',
  ]  # fmt: skip
