"""Tables in the three formats."""

import csv

from fusion_jax.tables import table

_HEADER = ['system', 'BLEU', 'p']
_ROWS = [[r'`a\|b`', '1.50', ''], ['50 %, _x', '2', '<0.1']]


def test_markdown():
  assert table('markdown', _HEADER, _ROWS).splitlines() == [
    '| system | BLEU | p |',
    '| --- | --- | --- |',
    r'| `a\|b` | 1.50 |  |',
    '| 50 %, _x | 2 | <0.1 |',
  ]
  assert '\n| :-- | --: | --: |\n' in table('markdown', _HEADER, _ROWS, True)


def test_csv_has_the_plain_texts():
  lines = table('csv', _HEADER, _ROWS).splitlines()
  assert list(csv.reader(lines)) == [
    _HEADER,
    ['a|b', '1.50', ''],
    ['50 %, _x', '2', '<0.1'],
  ]


def test_latex_has_the_lines_of_booktabs_and_escapes():
  assert table('latex', _HEADER, _ROWS, numeric=True).splitlines() == [
    r'\begin{tabular}{lrr}',
    r'\toprule',
    r'system & BLEU & p \\',
    r'\midrule',
    r'\texttt{a|b} & 1.50 &  \\',
    r'50 \%, \_x & 2 & \textless{}0.1 \\',
    r'\bottomrule',
    r'\end{tabular}',
  ]
