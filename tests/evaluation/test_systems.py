"""A run directory in the place of a file of translations."""

import dataclasses
import json

import pytest
from comparing import write
from saved_runs import SavedRun

from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError
from fusion_jax.evaluation import compare, systems
from fusion_jax.evaluation.systems import TextFile, translation_of
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


def test_the_run_translates_by_its_own_settings(saved, first):
  path, found = first
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
  other = dataclasses.replace(text, languages=('en', 'fr'))
  assert systems._languages({'a': text, 'b': text}) == ('en', 'de')
  with pytest.raises(
    InputError, match='a, b translate in different directions'
  ):
    systems._languages({'a': text, 'b': other})
