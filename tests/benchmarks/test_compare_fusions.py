"""The program of the comparison, on texts of one line."""

import gzip

import pytest
import small_comparison

from benchmarks.compare_fusions import main


@pytest.fixture
def flags(tmp_path):
  """Those of a corpus of one line, a recipe for it, and two runs."""
  for name in ('train', 'val', 'test_2016_flickr'):
    for language in ('en', 'de'):
      with gzip.open(tmp_path / f'{name}.{language}.gz', 'wt') as file:
        file.write('A line.\n')
  recipe = tmp_path / 'recipe.toml'
  recipe.write_text(small_comparison.RECIPE)
  folders = {
    'data': tmp_path,
    'workdir': tmp_path / 'runs',
    'recipe': recipe,
    'results': tmp_path / 'results',
  }
  return [
    *(f'--{name}={path}' for name, path in folders.items()),
    *('--phases=plain', '--norms=pre', '--seeds=0'),
  ]


def test_the_tables_follow_what_there_was_time_for(flags, capsys):
  assert not main([*flags, '--limit=0'])
  printed = capsys.readouterr()
  assert 'the rest is left for the next time' in printed.err
  assert printed.out.startswith('Recipe `')
  assert printed.out.endswith('None of 2 runs is finished yet.\n')


def test_a_phase_that_is_not_there_cannot_be_kept(flags, capsys):
  assert main([*flags, '--limit=0', '--keep=continue'])
  assert "--keep: no 'continue' in the comparison" in capsys.readouterr().err
