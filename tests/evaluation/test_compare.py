"""Comparisons of systems, their report and figure; runs as systems."""

import csv
import json
import os

import matplotlib.image
import pytest
from comparing import mistaken, pairs, write
from programs import one_line
from saved_runs import SavedRun

from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError
from fusion_jax.evaluation import TextFile, compare
from fusion_jax.evaluation.compare import translation_of
from fusion_jax.evaluation.comparison import draw
from fusion_jax.metrics import corpus_scores
from fusion_jax.runs import loading

_FEW = ('--samples=50', '--trials=60', '--jobs=1')


@pytest.fixture
def texts(tmp_path, monkeypatch):
  """Files of 24 lines in the working directory."""
  monkeypatch.chdir(tmp_path)
  sources, targets = pairs(24)
  named = {'source': sources, 'reference': targets}
  for seed, name in enumerate(('base', 'base2', 'new', 'new2')):
    named[name] = mistaken(targets, 0.35 - 0.1 * ('new' in name), seed)
  for name, lines in named.items():
    write(tmp_path / name, lines)
  return named


def _compare(*flags):
  return compare.main(
    ['--source=source', '--reference=reference', '--output=out', *flags]
  )


def _numbers():
  with open('out/compare.json') as file:
    return json.load(file)


_SEEDS = '--system=base=base,base2', '--system=new=new,new2'


def test_numbers_of_two_systems(texts, capsys):
  assert _compare(*_SEEDS, *_FEW) == 0
  numbers = _numbers()
  assert numbers['lines'] == 24
  assert numbers['systems'] == {
    'base': ['base', 'base2'],
    'new': ['new', 'new2'],
  }
  scores = [
    corpus_scores(texts[name], texts['reference'], 'en')
    for name in ('new', 'new2')
  ]
  for metric, name in (('BLEU', 'bleu'), ('chrF2', 'chrf')):
    seeds = numbers['seeds'][metric]
    assert seeds['new']['scores'] == pytest.approx(
      [getattr(each, name) for each in scores]
    )
    assert 0 < seeds['new']['welch'] < 1
    assert seeds['base']['welch'] is None
  for test, count in (('bootstrap', 'bs:50'), ('randomisation', 'ar:60')):
    found = numbers['tests'][test]['TER']
    assert count in found['signature']
    assert found['systems']['base']['p_value'] is None
    assert 0 < found['systems']['new']['p_value'] <= 1
  sign = numbers['sign_test']['new']
  assert sign['better'] + sign['worse'] + sign['same'] == 24
  assert sum(row['count'] for row in numbers['lengths']['bounds']) == 24
  first = capsys.readouterr().out.splitlines()
  assert [line.split(':')[0] for line in first] == ['base', 'new']
  assert f'BLEU {scores[0].bleu:.2f}, chrF2 {scores[0].chrf:.2f}' in first[1]


def test_examples_are_the_largest_differences(texts):
  assert _compare(*_SEEDS, *_FEW) == 0
  expected = []
  for index, reference in enumerate(texts['reference']):
    base, new = (
      corpus_scores([texts[name][index]], [reference], 'en').chrf
      for name in ('base', 'new')
    )
    expected.append(new - base)
  found = _numbers()['differences']['new']
  for way, order in (
    ('better', sorted(expected, reverse=True)[:5]),
    ('worse', sorted(expected)[:5]),
  ):
    changes = [each['system'] - each['baseline'] for each in found[way]]
    assert changes == pytest.approx([x for x in order if x * order[0] > 0])
    for each in found[way]:
      index = each['line'] - 1
      assert each['source'] == texts['source'][index]
      assert each['references'] == [texts['reference'][index]]
      assert each['baseline_text'] == texts['base'][index]
      assert each['system_text'] == texts['new'][index]


def test_the_report_has_every_part(texts):
  assert _compare(*_SEEDS, *_FEW, '--length_bounds=6,9,99') == 0
  with open('out/compare.md') as file:
    report = file.read()
  numbers = _numbers()
  titles = [line for line in report.splitlines() if line.startswith('#')]
  assert titles == [
    '# Comparison of systems',
    '## Scores',
    '### BLEU',
    '### chrF2',
    '### TER',
    '## Sign test',
    '## Seeds',
    '## BLEU by source length',
    '## F1 of words by their frequency',
    '## Where `new` and `base` differ most',
    '## Signatures',
  ]
  bleu = numbers['seeds']['BLEU']
  change = bleu['new']['scores'][0] - bleu['base']['scores'][0]
  assert f'| `new` | {bleu["new"]["scores"][0]:.2f} | {change:+.2f} |' in report
  assert 'of the first file of each system' in report
  tested = numbers['tests']['bootstrap']['BLEU']['systems']
  centre = tested['new']['mean'] - tested['base']['mean']
  spread = tested['new']['difference_interval']
  assert f'| {centre:+.2f} ± {spread:.2f} |' in report
  few = [row for row in numbers['lengths']['bounds'] if 0 < row['count'] < 20]
  assert few
  for row in few:
    assert f'| {row["bucket"]} | {row["count"]} (few) |' in report
  assert 'Few: fewer than 20 lines, whose scores say little.' in report
  assert 'The boundaries that were asked for:' in report
  rows = numbers['lengths']['bounds']
  empty = [row['bucket'] for row in rows if not row['count']]
  assert '>99' in empty
  assert f'Empty, without lines: {", ".join(empty)}.' in report
  assert 'are counted in `reference`.' in report
  for signature in numbers['signatures'].values():
    assert f'`{signature}`' in report
  # All rows of a table have as many cells.
  for table in report.split('\n\n'):
    if table.startswith('|'):
      assert len({line.count('|') for line in table.splitlines()}) == 1


def test_the_figure_is_not_blank(texts):
  assert _compare(*_SEEDS, *_FEW) == 0
  image = matplotlib.image.imread('out/compare.png')[..., :3]
  # The first two of the palette of figures.py, 0072B2 and D55E00.
  for colour in ((0, 0x72, 0xB2), (0xD5, 0x5E, 0)):
    same = (abs(image * 255 - colour) < 2).all(axis=-1)
    # Its bars are several per cent of the figure.
    assert same.mean() > 0.02
    halves = same.shape[1] // 2
    assert same[:, :halves].any()
    assert same[:, halves:].any()
  with open('out/compare.svg') as file:
    assert 'words of the source (lines)' in file.read()


@pytest.mark.extended
def test_processes_change_nothing(texts):
  assert _compare(*_SEEDS, *_FEW) == 0
  alone = _numbers()
  os.remove('out/compare.json')
  assert _compare(*_SEEDS, *_FEW[:2], '--jobs=2') == 0
  assert _numbers() == alone


def test_one_system_alone_is_scored(texts):
  flags = '--system=base=base', '--target_language=zh'
  assert _compare(*flags, *_FEW) == 0
  numbers = _numbers()
  assert (
    numbers['tests'] == numbers['sign_test'] == numbers['differences'] == {}
  )
  assert '|tok:zh' in numbers['signatures']['BLEU']


def test_two_references_and_counts_of_a_training_text(texts):
  with open('train', 'w') as file:
    file.write('The the unseen\n' * 7)
  flags = '--reference=base2', '--train_target=train', '--system=base=base'
  assert _compare(*flags, *_FEW) == 0
  numbers = _numbers()
  assert numbers['signatures']['BLEU'].startswith('nrefs:2|')
  found = numbers['frequencies']
  assert found['counted_in'] == 'train'
  rows = {row['bucket']: row['count'] for row in found['buckets']}
  words = ' '.join(texts['reference']).split()
  # `The` and `the` are there 7 times, all else never; BLEU's words are more,
  # for punctuation is parted from them.
  assert rows['5-9'] == words.count('The') + words.count('the') > 0
  assert rows['0'] > len(words) - rows['5-9']
  assert sum(rows.values()) == rows['0'] + rows['5-9']


def test_names_and_texts_mean_nothing_to_markdown(texts):
  with open('odd', 'w') as file:
    file.write('*a* | <b> `c`\n' * 24)
  assert _compare('--system=base=base', '--system=a|b=odd', *_FEW) == 0
  with open('out/compare.md') as file:
    report = file.read()
  assert '`a\\|b`' in report
  assert '\\*a\\* \\| \\<b\\> \\`c\\`' in report


def test_a_table_of_the_scores_on_stdout(texts, capsys):
  flags = '--system=base=base', '--system=a_b=new', *_FEW
  assert _compare(*flags, '--format=csv') == 0
  header, base, new = csv.reader(capsys.readouterr().out.splitlines())
  assert header == ['system', 'BLEU', 'chrF2', 'TER', 'p, bootstrap',
                    'p, randomisation', 'p, sign test']  # fmt: skip
  bleu = corpus_scores(texts['new'], texts['reference'], 'en').bleu
  assert new[:2] == ['a_b', f'{bleu:.2f}']
  assert base[0] == 'base'
  assert base[-3:] == ['', '', '']
  assert _compare(*flags, '--format=latex') == 0
  last = capsys.readouterr().out.splitlines()[5]
  assert last.startswith(rf'\texttt{{a\_b}} & {bleu:.2f} & ')


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ([], 'no system to compare: give --system NAME=FILE[,FILE]'),
    (['--system=base'], '--system base: must be NAME=FILE[,FILE]'),
    (['--system=a/b=base'], 'the name without /'),
    (['--system=a=base', '--system=a=new'], '--system a=new: gives the system'),
    (['--system=a=base,base'], '--system a=base,base: gives the system or a'),
    (['--system=a=none'], 'none: cannot be read: No such file'),
    (['--system=a=empty'], 'empty: the file is empty'),
    (['--system=a=short'], 'short has 1 lines but source has 24: line i'),
    (['--system=a=folder'], 'folder: not a run directory: it has no config'),
    (
      ['--system=a=base', '--system=b=new', '--baseline=c'],
      '--baseline=c: no such system; there are a, b',
    ),
    *(
      (['--system=a=base', f'--length_bounds={bounds}'], f"got '{bounds}'")
      for bounds in ('9,5', '', '0,5')
    ),
    (['--system=a=base', '--output=short/out'], 'short/out: cannot be'),
  ],
)
def test_mistakes_end_in_one_line(texts, capsys, flags, message):
  files = {'empty': b'', 'short': b'one\n'}
  for name, content in files.items():
    with open(name, 'wb') as file:
      file.write(content)
  os.mkdir('folder')
  assert _compare(*flags) == 2
  assert message in one_line(capsys.readouterr().err)
  assert not any(found for _, _, found in os.walk('out'))


def _bucket(name, count, score):
  scores = {'base': score, 'new': score}
  return {'bucket': name, 'count': count, 'scores': scores}


def _tested(mean, difference=None):
  return {'mean': mean, 'interval': 3.0, 'difference_interval': difference}


def _numbers_figure(*buckets, seeds=2):
  tested = {'base': _tested(20.5), 'new': _tested(22.0, 1.25)}
  scores = {'base': [20.0, 20.5][:seeds], 'new': [21.0, 23.0][:seeds]}
  return {
    'baseline': 'base',
    'systems': {'base': ['a', 'b'], 'new': ['c', 'd']},
    'tests': {'bootstrap': {'BLEU': {'systems': tested}}},
    'seeds': {'BLEU': {name: {'scores': x} for name, x in scores.items()}},
    'lengths': {'bounds': list(buckets)},
    'frequencies': {'buckets': [_bucket('1', 50, 50.0)]},
  }


def test_empty_buckets_are_not_drawn():
  empty = _bucket('1-15', 0, None)
  figure = draw(_numbers_figure(empty, _bucket('16-30', 70, 20.0), empty))
  _, lengths, _ = figure.axes
  names = [label.get_text() for label in lengths.get_xticklabels()]
  assert names == ['16-30\n(70)']
  assert len(lengths.patches) == 2
  assert lengths.get_ylim()[0] == 0


def test_the_difference_to_the_baseline_is_drawn_with_its_own_interval():
  figure = draw(_numbers_figure(_bucket('1-15', 70, 20.0)))
  differences = figure.axes[0]
  assert [x.get_text() for x in differences.get_yticklabels()] == ['new']
  (bar,) = differences.collections
  assert bar.get_segments()[0][:, 0].tolist() == pytest.approx([0.25, 2.75])
  assert differences.get_xlabel() == 'BLEU less that of base'


@pytest.mark.parametrize(('seeds', 'drawn'), [(1, []), (2, [[1.0, 3.0]])])
def test_seeds_are_crosses_only_if_there_are_several(seeds, drawn):
  figure = draw(_numbers_figure(_bucket('1-15', 70, 20.0), seeds=seeds))
  differences = figure.axes[0]
  crosses = [x for x in differences.lines if x.get_marker() == 'x']
  assert [list(each.get_xdata()) for each in crosses] == drawn
  assert ('crosses' in differences.get_title()) == bool(drawn)


def test_bars_of_few_lines_are_grey_but_not_in_the_legend():
  few, many = _bucket('1-15', 19, 100.0), _bucket('16-30', 20, 20.0)
  figure = draw(_numbers_figure(few, many))
  lengths = figure.axes[1]
  colours = [
    [bar.get_facecolor() for bar in bars] for bars in lengths.containers
  ]
  assert colours[0][0] == colours[1][0]
  assert colours[0][1] != colours[1][1]
  (legend,) = figure.legends
  shown = [each.get_facecolor() for each in legend.legend_handles]
  assert shown == [each[1] for each in colours]
  assert 'grey: fewer than 20' in lengths.get_xlabel()
  assert 'grey' not in figure.axes[2].get_xlabel()


_LINES = ['the cat', '', 'a dog on']


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  run = SavedRun(tmp_path_factory.mktemp('run') / 'run')
  run.save({1: 1.0})
  return run


def test_the_run_translates_by_its_own_settings(saved, tmp_path):
  path = tmp_path / 'a.1.txt'
  found = translation_of(str(saved.workdir), _LINES, ('', ''), path)
  run = loading.load_run(saved.workdir)
  expected = list(Translator(run, run.config.decoding).translate(_LINES))
  assert path.read_text().split('\n') == [*expected, '']
  assert found.lines == tuple(line.rstrip() for line in expected)
  assert found.lines[0]
  assert found.run == f'{saved.workdir}, step 1'
  assert found.languages == ('en', 'de')


def test_runs_and_files_are_compared(saved, tmp_path):
  kept = tmp_path / 'out' / 'translations'
  source = write(tmp_path / 'source', _LINES)
  reference = write(tmp_path / 'reference', ['die Katze', '', 'ein Hund auf'])
  flags = [f'--source={source}', f'--reference={reference}', '--jobs=1']
  flags += [f'--system=a={saved.workdir}', f'--system=b={reference}']
  flags += ['--samples=9', '--trials=9', f'--output={tmp_path / "out"}']
  assert compare.main(flags) == 0
  numbers = json.loads((tmp_path / 'out' / 'compare.json').read_text())
  assert numbers['systems']['a'] == [str(kept / 'a.1.txt')]
  assert numbers['runs'] == {str(kept / 'a.1.txt'): f'{saved.workdir}, step 1'}
  assert numbers['target_language'] == 'de'
  report = (tmp_path / 'out' / 'compare.md').read_text()
  assert f'(`{saved.workdir}, step 1`)' in report
  assert numbers['seeds']['chrF2']['b']['scores'] == pytest.approx([100])


def test_runs_of_other_directions_are_refused(tmp_path):
  text = TextFile('a', ('a',), 'a', ('en', 'de'))
  other = text._replace(languages=('en', 'fr'))
  assert compare._languages({'a': text, 'b': text}) == ('en', 'de')
  with pytest.raises(
    InputError, match='a, b translate in different directions'
  ):
    compare._languages({'a': text, 'b': other})
