"""Tables as Markdown."""

from fusion_jax.tables import markdown_name, table


def test_a_table():
  rows = [[markdown_name('a|b'), '1']]
  assert table(['x', 'y'], rows, numeric=True) == (
    '| x | y |\n| :-- | --: |\n| `a\\|b` | 1 |'
  )
  assert table(['x'], []) == '| x |\n| --- |'
