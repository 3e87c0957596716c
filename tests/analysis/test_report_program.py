"""The program that makes reports, on saved runs, and what it gathers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from report_runs import Page, write_metrics
from saved_runs import SavedRun

from fusion_jax.analysis import curves, similarity
from fusion_jax.analysis.report import __main__ as program
from fusion_jax.analysis.report import run as report_run
from fusion_jax.analysis.report import views as report_views
from fusion_jax.analysis.report.run import (
  command,
  environment,
  parameters_by_part,
  training_pairs,
)


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


@pytest.mark.parametrize(
  ('report', 'expected'),
  [
    (
      {'splits': {'train': {'pairs': 7, 'kept': 5, 'dropped': {}}}},
      {'pairs': 7, 'kept': 5},
    ),
    ({'splits': {'valid': {'pairs': 7, 'kept': 5}}}, {}),
    ({'splits': {'train': {'pairs': 'many', 'kept': 5}}}, {}),
    (None, {}),
  ],
)
def test_training_pairs_of_a_run(tmp_path, report, expected):
  if report is not None:
    (tmp_path / 'corpus').mkdir()
    (tmp_path / 'corpus' / 'report.json').write_text(json.dumps(report))
  assert training_pairs(tmp_path) == expected


def test_the_command_repeats_the_flags(tmp_path):
  parser = program._parser()
  plain = parser.parse_args(['--workdir', 'x', '--shown=3'])
  assert command(Path('x y'), plain) == (
    "fusion-jax analyse VIEW '--workdir=x y'"
  )
  flags = ['--step=40', '--lines=5', '--source=a', '--target=b']
  given = parser.parse_args(['--workdir', 'x', *flags])
  assert set(flags) < set(command(Path('x'), given).split())


def test_names_tell_runs_apart():
  paths = [Path('a/x'), Path('b/y')]
  assert program.distinct(['one', 'two'], paths) == ['one', 'two']
  assert program.distinct(['one', 'one'], paths) == ['x', 'y']
  assert program.distinct(['one', 'one'], [Path('a/x'), Path('b/x')]) == [
    'a/x',
    'b/x',
  ]


def test_the_environment_names_versions():
  found = environment()
  assert found['Python'].startswith('3.')
  assert {'jax', 'flax', 'sacrebleu', 'devices'} <= found.keys()


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
  paths = [str(folder / name) for name in workdirs]
  text = f'--source={folder / "s"}', f'--target={folder / "t"}'
  return program.main(['--workdir', *paths, *text, *flags])


@pytest.mark.extended
def test_the_program_makes_a_page(saved, capsys, monkeypatch):
  every = [curves.CURVES, similarity.VIEW, curves.GRADIENTS]
  monkeypatch.setattr(report_views, 'views_of', lambda config: every)
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
  monkeypatch.setattr(report_run, 'Translator', lambda *_, **__: 1 / 0)
  assert _main(saved) == 0
  assert Page(output.read_text()).tags == html.tags
  assert times == {p: p.stat().st_mtime_ns for p in times}
  shutil.copytree(saved / 'one', saved / 'two', dirs_exist_ok=True)
  capsys.readouterr()
  assert _main(saved) == 0
  flags = (f'--output={saved / "both.html"}', '--shown=2')
  assert _main(saved, *flags, workdirs=('one', 'two')) == 0
  both = Page((saved / 'both.html').read_text())
  assert both.words['h1'] == ['one, two']
  assert len(both.all('dl')) == 2
  # Lengths and curves of both, and of each its other two views.
  assert len(both.all('img')) == 2 + 2 * 2


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
    (lambda f, t: ['--output', str(t / 'x/y.html')], 'no directory'),
    (lambda f, t: ['--output', str(t)], 'name a file in it'),
    (lambda f, t: ['--lines=-1'], '--lines: must be >= 0, got -1'),
    (lambda f, t: ['--shown=0'], '--shown: must be >= 1, got 0'),
    (lambda f, t: ['--source=x'], 'give both, or neither'),
    (lambda f, t: ['--workdir', 'a', 'a'], 'given twice'),
    (lambda f, t: ['--workdir', 'a', 'b'], 'name the page of several runs'),
    (lambda f, t: ['--works=a'], '--help lists the flags'),
  ],
)
def test_bad_input_is_one_line(flags, said, saved, tmp_path, capsys):
  given = flags(saved, tmp_path)
  if '--workdir' not in given:
    given = ['--workdir', str(saved / 'one'), *given]
  before = sorted(tmp_path.rglob('*'))
  assert program.main(given) == 2
  captured = capsys.readouterr()
  errors = [e for e in captured.err.splitlines() if e.startswith('error: ')]
  assert len(errors) == 1
  assert said in errors[0]
  assert captured.out == ''
  assert sorted(tmp_path.rglob('*')) == before
