"""The program of the comparison, on texts of one line."""

import gzip

import small_comparison

from benchmarks.compare_fusions import main


def test_the_tables_follow_what_there_was_time_for(tmp_path, capsys):
  for name in ('train', 'val', 'test_2016_flickr'):
    for language in ('en', 'de'):
      with gzip.open(tmp_path / f'{name}.{language}.gz', 'wt') as file:
        file.write('A line.\n')
  recipe = tmp_path / 'recipe.toml'
  recipe.write_text(small_comparison.RECIPE)
  folders = {'data': tmp_path, 'workdir': tmp_path / 'runs', 'recipe': recipe}
  flags = [f'--{name}={path}' for name, path in folders.items()]
  chosen = '--phases=plain', '--norms=pre', '--seeds=0', '--priority=normal'
  assert not main(
    [*flags, *chosen, f'--results={tmp_path / "results"}', '--limit=0']
  )
  printed = capsys.readouterr()
  assert 'the rest is left for the next time' in printed.err
  assert printed.out.startswith('Recipe `')
  assert printed.out.endswith('None of 2 runs is finished yet.\n')
