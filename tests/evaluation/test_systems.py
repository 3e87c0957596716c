"""A run directory in the place of a file of translations."""

import json
import shutil

import pytest
from comparing import write
from saved_runs import SavedRun

from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError
from fusion_jax.evaluation import compare
from fusion_jax.evaluation.systems import translation_of
from fusion_jax.runs import loading

_LINES = ['the cat', '', 'a dog on']


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  run = SavedRun(tmp_path_factory.mktemp('run') / 'run')
  run.save({1: 1.0})
  return run


@pytest.fixture(scope='module')
def first(saved, tmp_path_factory):
  """The translations, made once, and what was found."""
  path = tmp_path_factory.mktemp('translations') / 'a.1.txt'
  return path, translation_of(str(saved.workdir), _LINES, ('', ''), path)


@pytest.fixture
def no_loading(monkeypatch):
  def refuse(*arguments):
    raise InputError('it was loaded')

  monkeypatch.setattr(loading, 'load_run', refuse)


def test_the_run_translates_by_its_own_settings(saved, first):
  path, found = first
  run = loading.load_run(saved.workdir)
  expected = list(Translator(run, run.config.decoding).translate(_LINES))
  assert path.read_text().split('\n') == [*expected, '']
  assert found.lines == tuple(line.rstrip() for line in expected)
  assert found.lines[0]
  assert found.run == f'{saved.workdir}, step 1'
  assert found.languages == ('en', 'de')
  assert json.loads(path.with_suffix('.json').read_text())['step'] == 1


def test_translations_are_made_once(saved, first, no_loading):
  path, found = first
  assert translation_of(str(saved.workdir), _LINES, ('', ''), path) == found


@pytest.mark.parametrize('change', ['text', 'checkpoint', 'config', 'record'])
def test_they_are_made_anew_if_something_changes(
  saved, first, no_loading, tmp_path, change
):
  for file in first[0].parent.iterdir():
    shutil.copy(file, tmp_path)
  run, lines, path = tmp_path / 'run', [*_LINES], tmp_path / first[0].name
  shutil.copytree(saved.workdir, run)
  record = path.with_suffix('.json')
  record.write_text(record.read_text().replace(str(saved.workdir), str(run)))
  again = translation_of(str(run), lines, ('', ''), path)
  assert again.lines == first[1].lines
  if change == 'text':
    lines[0] = 'a cat'
  elif change == 'checkpoint':
    (run / 'checkpoints' / '2').mkdir()
  elif change == 'config':
    (run / 'config.json').write_text((run / 'config.json').read_text() + '\n')
  else:
    record.write_text('{')
  with pytest.raises(InputError, match=r'^it was loaded$'):
    translation_of(str(run), lines, ('', ''), path)


def test_runs_and_files_are_compared(saved, first, no_loading, tmp_path):
  kept = tmp_path / 'out' / 'translations'
  kept.mkdir(parents=True)
  for file in first[0].parent.iterdir():
    shutil.copy(file, kept)
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


def test_runs_of_other_directions_are_refused(
  saved, first, no_loading, tmp_path, capsys
):
  # The same run, but its translations are said to be French.
  kept = tmp_path / 'out' / 'translations'
  kept.mkdir(parents=True)
  french = tmp_path / 'french'
  shutil.copytree(saved.workdir, french)
  text, record = first[0].read_text(), first[0].with_suffix('.json').read_text()
  for name in ('a.1', 'b.1'):
    (kept / f'{name}.txt').write_text(text)
  (kept / 'a.1.json').write_text(record)
  record = record.replace(str(saved.workdir), str(french))
  (kept / 'b.1.json').write_text(record.replace('"de"', '"fr"'))
  source = write(tmp_path / 'source', _LINES)
  flags = [f'--source={source}', f'--reference={source}', '--jobs=1']
  flags += [f'--system=a={saved.workdir}', f'--system=b={french}']
  assert compare.main([*flags, f'--output={tmp_path / "out"}']) == 2
  assert 'the runs translate in different directions' in capsys.readouterr().err


def test_what_is_no_trained_run_is_named(tmp_path, saved):
  path = tmp_path / 'a.1.txt'
  with pytest.raises(InputError, match='not a run directory: it has no config'):
    translation_of(str(tmp_path), _LINES, ('', ''), path)
  shutil.copy(saved.workdir / 'config.json', tmp_path)
  with pytest.raises(InputError, match='no checkpoint yet; train first'):
    translation_of(str(tmp_path), _LINES, ('', ''), path)
  assert not path.exists()
