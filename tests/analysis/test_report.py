"""Pages of runs that are made by hand, and the program that makes them."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from cases import reading
from programs import one_line
from report_runs import (
  MODEL,
  TEXT,
  TRAINED,
  Page,
  fused_run,
  report_of,
  write_metrics,
)
from saved_runs import SavedRun

from fusion_jax import figures
from fusion_jax.analysis.report import __main__ as program
from fusion_jax.analysis.report import contents
from fusion_jax.analysis.report import page as report_page
from fusion_jax.analysis.report.contents import (
  parameters_by_part,
  training_pairs,
)
from fusion_jax.analysis.report.page import page
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.views import VIEWS, View, keep, views_of
from fusion_jax.config import DataConfig, DecodingConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES
from fusion_jax.metrics import corpus_scores, words_of

_SECTIONS = [
  *('runs', 'scores', 'training', 'views', 'translations', 'options'),
  *('data', 'parameters', 'environment'),
]


# A model, and what the page says of its schemes.
_MODELS = {
  SCHEMES['gtrans'].source: {'decoder': SideConfig('gtrans')},
  'lexical shortcuts': {'encoder': reading('shortcut', source='lexical')},
  'attention over 2 layers': {
    'decoder': reading('multi_layer', layers=2),
    'decoder_layers': 3,
  },
}


@pytest.fixture
def quick(monkeypatch):
  """Pages whose figures are not drawn, which takes seconds."""
  picture = figures.Picture('data:image/svg+xml;base64,', 96)
  monkeypatch.setattr(figures, 'as_panels', lambda figure: (picture,) * 2)


def _slow_view(measure=lambda analysed: pytest.fail('it is slow')):
  return View(
    name='slow_one',
    title='A slow one',
    source='Someone <et al.> 2020',
    reading='It takes long & is slow.',
    measure=measure,
    draw=lambda numbers: figures.Figure(),
    summary=str,
    slow=True,
  )


def _stored(view, analysed, folder):
  """In place of `look_at`: a result that is not computed."""
  folder.mkdir(exist_ok=True)
  for kind in ('svg', 'png'):
    (folder / f'{view.name}.{kind}').write_bytes(b'')
  values = {'summary': f'{view.name} <seen>', 'numbers': [1.5, None]}
  keep(folder / f'{view.name}.json', analysed, values, analysed.digest)
  return values


def _page(runs, text=TEXT):
  return page(runs, text, 'the text', 12, {'jax': '1 < 2'})


def _cards(analysed, folder, slow=False):
  return list(contents.cards(analysed, folder, slow))


@pytest.mark.parametrize('words', _MODELS)
@pytest.mark.usefixtures('quick')
def test_every_view_of_a_scheme_is_named(words, tmp_path, monkeypatch):
  slow, model = _slow_view(), dataclasses.replace(MODEL, **_MODELS[words])
  every = [
    dataclasses.replace(view, draw=slow.draw)
    for view in (*views_of(model), slow)
  ]
  monkeypatch.setattr(contents, 'views_of', lambda config: every)
  monkeypatch.setattr(contents, 'look_at', _stored)
  analysed = fused_run(tmp_path, model)
  found = _cards(analysed, tmp_path / 'analysis')
  assert [card.view for card in found] == every
  html = Page(_page([report_of(analysed, found)]))
  assert words in html.text
  for card in found:
    view = card.view
    assert view.title in html.words['h2'] + html.words['h3']
    if view.slow:
      assert f'fusion-jax analyse {view.name} --workdir=' in html.text
    else:
      assert any(view.title in image['alt'] for image in html.all('img'))
    assert view.source in html.text
    assert view.reading in html.text


def _changed(analysed, **changes):
  """The same run directory, of a run or a text that differs in something."""
  run, lines = analysed.run, changes.pop('lines', analysed.lines)
  config = run.config
  for name in changes.keys() & {'data', 'decoding'}:
    config = dataclasses.replace(config, **{name: changes.pop(name)})
  run = dataclasses.replace(run, config=config, **changes)
  other = RunWithText(analysed.workdir, run, analysed.choice)
  other.lines = lines
  return other


_CHANGES = {
  'text': {'lines': (('a dog', 'ein Hund'), *TEXT[1:])},
  'reference': {'lines': ((TEXT[0][0], 'ein Hund'), *TEXT[1:])},
  'direction': {'data': DataConfig(source_language='nl')},
  'search': {'decoding': DecodingConfig(beam_size=2)},
  'parameters': {'parameters': {'w': np.array([1.0, 2.5], np.float32)}},
  'checkpoint': {'step': 31},
  'checkpoints': {'steps': (20, 30)},
}


@pytest.fixture
def counted(tmp_path, monkeypatch):
  """A analysed, and the translations and views that were made of it."""
  made = []
  view = dataclasses.replace(_slow_view(), slow=False)

  def translate(run, sources):
    made.append('translation')
    return list(sources)

  def look_at(*given):
    made.append('view')
    return _stored(*given)

  monkeypatch.setattr(contents, 'translate', translate)
  monkeypatch.setattr(contents, 'views_of', lambda config: [view])
  monkeypatch.setattr(contents, 'look_at', look_at)
  analysed = fused_run(tmp_path)
  parameters = {'w': np.array([1.0, 2.0], np.float32)}
  return _changed(analysed, parameters=parameters), made


def _both(analysed):
  (card,) = _cards(analysed, analysed.workdir)
  return contents.translation(analysed, analysed.workdir), card.content


@pytest.mark.parametrize('change', _CHANGES)
def test_what_was_made_of_other_inputs_is_made_anew(counted, change):
  analysed, made = counted
  first = _both(analysed)
  assert made == ['view', 'translation']
  same = _both(_changed(analysed))
  assert made == ['view', 'translation']
  assert same[0] == first[0]
  assert same[1]['numbers'] == first[1]['numbers']
  other = _changed(analysed, **_CHANGES[change])
  lines, _ = _both(other)
  assert made == ['view', 'translation'] * 2
  assert lines == [source for source, _ in other.lines]


@pytest.mark.usefixtures('quick')
def test_a_view_that_cannot_be_made_says_why(tmp_path, monkeypatch):
  def measure(analysed):
    raise InputError('there is no <light>')

  view = _slow_view(measure)
  monkeypatch.setattr(contents, 'views_of', lambda config: [view])
  analysed = fused_run(tmp_path)
  (card,) = _cards(analysed, tmp_path, slow=True)
  assert card.missing == 'It could not be made: there is no <light>.'
  text = Page(_page([report_of(analysed, [card])])).text
  assert card.missing in text
  assert 'analyse slow_one --workdir=runs/<one>' in text


@pytest.mark.usefixtures('quick')
def test_the_sections_of_a_page(tmp_path):
  html = Page(_page([report_of(fused_run(tmp_path))]))
  ids = html.ids()
  assert len(ids) == len(set(ids))
  assert [name for name in ids if not name.startswith('view-')] == _SECTIONS
  links = [each['href'] for each in html.all('a')]
  assert links == [f'#{name}' for name in _SECTIONS]
  for said in ('1,200, 1,100 after filtering', '75.0%', 'nrefs:1|', '1 < 2'):
    assert said in html.text
  assert html.all('html') == [{'lang': 'en'}]
  assert html.words['title'] == ['run: no fusion - fusion_jax']


def test_each_bleu_says_what_it_is_of(tmp_path):
  run = report_of(fused_run(tmp_path))
  _, ((_, bleu, _, validated),) = report_page.scores([run])
  assert bleu == f'{run.scores.bleu:.2f} (1.50 to 42.25), beam 4'
  assert validated == '4.50 (all lines, beam 1)'
  heads, _ = report_page.validations(run)
  assert 'bleu, all lines, beam 1' in heads


def _overview(run):
  return dict(report_page.overview([run]))


def test_seed_speed_and_version_are_shown(tmp_path):
  analysed = fused_run(tmp_path)
  rows = _overview(dataclasses.replace(report_of(analysed), code=''))
  names = 'speed of training', 'peak memory', 'fusion_jax'
  assert [rows[name] for name in names] == ['not recorded'] * 3
  costs = [
    {'tokens_per_second': 1000 * row['step'], 'peak_memory': 1e9 + row['step']}
    | row
    for row in TRAINED
  ]
  write_metrics(tmp_path, trained=costs)
  del analysed.metrics
  rows = _overview(report_of(analysed))
  assert rows['seed'] == '0'
  # The median of 10,000, 20,000 and 30,000.
  assert [rows[name] for name in names] == [
    *('20,000 target tokens a second', '1,000 MB', '0.1.0, commit 1a2b3c4')
  ]


def test_the_interval_of_bleu_is_that_of_the_bootstrap():
  references, words = ['eins zwei drei vier fünf'] * 30, words_of('de')
  # Every sample of the lines has the same score.
  same = contents.bleu_interval(references, references, words)
  assert same == (pytest.approx(100), pytest.approx(100))
  made = ['eins zwei drei vier sechs'] * 15 + references[15:]
  low, high = contents.bleu_interval(made, references, words)
  bleu = corpus_scores(made, references, 'de').bleu
  assert bleu - 20 < low < bleu - 1
  assert bleu + 1 < high < bleu + 20


@pytest.mark.parametrize(
  ('sides', 'expected'),
  [
    ({}, 'run: no fusion'),
    ({'decoder': SideConfig('gtrans')}, 'run: gtrans (decoder)'),
    (
      {side: SideConfig('hierarchical') for side in ('encoder', 'decoder')},
      'run: hierarchical (encoder and decoder)',
    ),
    (
      {
        'encoder': SideConfig('dlcl'),
        'decoder': reading('shortcut', source='lexical'),
      },
      'run: dlcl (encoder), shortcut (decoder)',
    ),
  ],
)
def test_the_title_names_the_schemes(sides, expected, tmp_path):
  analysed = fused_run(tmp_path, dataclasses.replace(MODEL, **sides))
  assert report_page.title(report_of(analysed)) == expected


@pytest.mark.usefixtures('quick')
def test_different_numbers_of_updates_are_said(tmp_path):
  analysed = fused_run(tmp_path)
  one, two = (report_of(analysed, name=name) for name in ('one', 'two'))
  longer = dataclasses.replace(two, last={'step': 1200})
  said = 'The trainings had different numbers of updates: one 30, two 1,200.'
  assert said in Page(_page([one, longer])).text


@pytest.fixture(scope='module')
def drawn(tmp_path_factory):
  """A page with its figures."""
  return _page([report_of(fused_run(tmp_path_factory.mktemp('drawn')))])


def test_panels_stand_alone(drawn):
  """A narrow screen can stack them; none is hidden at its right edge."""
  html = Page(drawn)
  images = html.all('img')
  # A legend and six curves.
  assert len(images) == 7
  assert images[0]['alt'].startswith('Curves of the training')
  widths = [
    int(each['style'].removeprefix('--width: ').removesuffix('px'))
    for each in images
  ]
  (share,) = re.findall(
    r'min-width: calc\((0\.\d+) \* var', html.words['style'][0]
  )
  # A screen of 390 pixels without the margins.
  assert float(share) * max(widths) < 340


@pytest.mark.usefixtures('quick')
def test_text_is_shown_as_it_is(tmp_path):
  made = ('<img src=x onerror=alert(1)>', '&lt;', '</dd>', '"\'')
  html = Page(_page([report_of(fused_run(tmp_path), made=made)]))
  # The page would have these elements if a line were not escaped.
  assert not html.all('script')
  assert not html.all('b')
  assert all('onerror' not in each for each in html.all('img'))
  for line in (*made, *(line for pair in TEXT for line in pair)):
    assert line in html.text
  assert 'runs/<one>' in html.text


def test_nothing_is_fetched(drawn):
  html = Page(drawn)
  for tag, attributes in html.tags:
    assert tag not in ('link', 'script', 'iframe', 'object', 'base')
    if 'src' in attributes:
      assert attributes['src'].startswith('data:image/')
    if 'href' in attributes:
      assert attributes['href'].startswith('#')
  assert not re.search(r'https?://|@import|url\(', drawn)
  policy = [each for each in html.all('meta') if 'http-equiv' in each]
  assert policy[0]['content'].startswith("default-src 'none';")


@pytest.mark.usefixtures('quick')
def test_a_comparison_shows_both(tmp_path):
  analysed = fused_run(tmp_path)
  one = report_of(analysed, name='one')
  wide = dataclasses.replace(
    one.config, model=dataclasses.replace(MODEL, norm='pre')
  )
  two = dataclasses.replace(
    report_of(analysed, name='two', made=[pair[1] for pair in TEXT]),
    config=wide,
  )
  whole = _page([one, two])
  html = Page(whole)
  assert html.words['h1'] == ['one: no fusion; two: no fusion']
  # The first is that of the legend; the second run has no difference.
  assert html.words['mark'][1:] == ['<i>Katze</i>', 'Katers']
  assert 'different numbers of updates' not in html.text
  difference = 100 - one.scores.bleu
  assert f'{difference:+.2f}' in html.words['td']
  assert 'BLEU less one' in html.words['th']
  rows = re.search(r'Where the runs differ.*?</table>', whole, re.DOTALL)[0]
  assert re.findall(r'<t[dh]\b[^>]*>([^<]*)', rows.replace('<wbr>', '')) == [
    'option', 'one', 'two', 'default', 'model.norm', 'post', 'pre', 'post',
  ]  # fmt: skip


def test_parameters_are_counted_by_part():
  attention = {'self_attention': {'key': {'kernel': np.zeros((3, 3))}}}
  tree = {
    'embedding': np.zeros((7, 3)),
    'encoder': {
      'layer_0': attention,
      'layer_1': attention | {'residual_scale': np.zeros(())},
      'read_out': {'node_2': {'kernel': np.zeros((2, 3))}},
      'final_norm': {'scale': np.zeros(3)},
    },
  }
  # 7 * 3; 2 * 3 * 3; one number; 2 * 3; 3.
  assert parameters_by_part(tree) == {
    'embedding': 21,
    'encoder layers / self_attention': 18,
    'encoder layers': 1,
    'encoder / read_out': 6,
    'encoder / final_norm': 3,
  }


def test_training_pairs_of_a_run(tmp_path):
  assert training_pairs(tmp_path) == {}
  numbers = {'pairs': 7, 'kept': 5}
  (tmp_path / 'corpus').mkdir()
  report = {'splits': {'train': numbers | {'dropped': {}}}}
  (tmp_path / 'corpus' / 'report.json').write_text(json.dumps(report))
  assert training_pairs(tmp_path) == numbers


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A run directory with one checkpoint, and a text it knows."""
  folder = tmp_path_factory.mktemp('reports')
  run = SavedRun(folder / 'one')
  run.save({30: 4.0})
  write_metrics(run.workdir)
  (folder / 's').write_text('the cat sat\na dog & <b>cats</b>\n\ndogs\n')
  (folder / 't').write_text('the dog sat\na <i> cat\ncats\ndogs\n')
  return folder


def _main(folder, *flags, workdirs=('one',)):
  paths = ','.join(str(folder / name) for name in workdirs)
  text = f'--source={folder / "s"}', f'--target={folder / "t"}'
  return program.main([f'--workdir={paths}', *text, *flags])


@pytest.mark.extended
def test_the_program_makes_a_page(saved, capsys, monkeypatch):
  every = [VIEWS[name] for name in ('curves', 'similarity', 'gradients')]
  monkeypatch.setattr(contents, 'views_of', lambda config: every)
  output = saved / 'one' / 'report.html'
  assert _main(saved) == 0
  assert capsys.readouterr().out == f'{output}\n'
  html = Page(output.read_text())
  assert 'a dog & <b>cats</b>' in html.text
  folder = saved / 'one' / 'analysis'
  kept = json.loads((folder / 'translation.json').read_text())
  lines = kept['translations']
  assert len(lines) == 4
  assert lines[2] == ''
  # The embedding is 30 x 16.
  assert '480 (' in html.text
  assert Page(output.read_text()).all('h3')[0] == {'id': 'view-similarity'}
  times = {p: p.stat().st_mtime_ns for p in folder.glob('similarity.*')}
  assert len(times) == 3
  monkeypatch.setattr(contents, 'translate', lambda *_: 1 / 0)
  assert _main(saved) == 0
  assert Page(output.read_text()).tags == html.tags
  assert times == {p: p.stat().st_mtime_ns for p in times}
  shutil.copytree(saved / 'one', saved / 'two', dirs_exist_ok=True)
  capsys.readouterr()
  assert _main(saved) == 0
  flags = (f'--output={saved / "both.html"}', '--shown=2')
  assert _main(saved, *flags, workdirs=('one', 'two')) == 0
  both = Page((saved / 'both.html').read_text())
  names = '; '.join(f'{saved / name}: no fusion' for name in ('one', 'two'))
  assert both.words['h1'] == [names]
  assert len(both.all('dl')) == 2
  # A legend and six curves, and of each run maps, lines and gradients.
  assert len(both.all('img')) == 1 + 6 + 2 * (3 + 2)


def _without(folder, tmp_path, *names):
  workdir = tmp_path / 'copy'
  left_out = shutil.ignore_patterns('report.html', 'analysis')
  shutil.copytree(folder / 'one', workdir, ignore=left_out)
  for name in names:
    path = workdir / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
  return ['--workdir', str(workdir)]


@pytest.mark.parametrize(
  ('flags', 'said'),
  [
    (lambda f, t: ['--workdir', str(t)], 'not a run directory'),
    (lambda f, t: _without(f, t, 'checkpoints'), 'no checkpoint yet'),
    (
      lambda f, t: [
        *_without(f, t, 'metrics.jsonl'),
        f'--source={f / "s"}',
        f'--target={f / "t"}',
      ],
      'training writes it into the run directory',
    ),
    (
      lambda f, t: _without(f, t),
      'holds no validation text of en-de; give --source and --target',
    ),
    (lambda f, t: ['--output', str(t)], 'must be a file in a directory'),
    (lambda f, t: ['--source=x'], 'give both, or neither'),
    (lambda f, t: ['--workdir=a,a'], 'given twice'),
    (lambda f, t: ['--workdir=a,b'], 'name the page of several runs'),
  ],
)
def test_bad_input_is_one_line(flags, said, saved, tmp_path, capsys):
  given = flags(saved, tmp_path)
  if not any(flag.startswith('--workdir') for flag in given):
    given = ['--workdir', str(saved / 'one'), *given]
  before = sorted(tmp_path.rglob('*'))
  assert program.main(given) == 2
  captured = capsys.readouterr()
  assert said in one_line(captured.err)
  assert captured.out == ''
  assert sorted(tmp_path.rglob('*')) == before
