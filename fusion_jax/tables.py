"""Tables as text: Markdown, CSV, or LaTeX for the package booktabs."""

import argparse
import csv
import io
import re
import typing
from collections.abc import Iterable, Sequence
from typing import Literal

Format = Literal['markdown', 'csv', 'latex']

_LATEX = {
  '\\': r'\textbackslash{}',
  '~': r'\textasciitilde{}',
  '^': r'\textasciicircum{}',
  '<': r'\textless{}',
  '±': r'$\pm$',
  '–': '--',
  **{each: rf'\{each}' for each in '&%$#_{}'},
}


def add_format_flag(parser: argparse.ArgumentParser, default: str = '') -> None:
  """Add --format to a parser."""
  parser.add_argument(
    '--format',
    choices=typing.get_args(Format),
    default=default,
    help='of the table on stdout; default: '
    f'{default or "one line a system"}; latex is for the package booktabs',
  )


def table(
  form: Format,
  header: Sequence[str],
  rows: Iterable[Sequence[str]],
  numeric: bool = False,
) -> str:
  """Write a table."""
  lines = [header, *rows]
  if form == 'csv':
    return _csv(lines)
  if form == 'latex':
    return _latex(lines, numeric)
  sides = [':--'] + ['--:'] * (len(header) - 1)
  rule = sides if numeric else ['---'] * len(header)
  return '\n'.join(
    f'| {" | ".join(line)} |' for line in (header, rule, *lines[1:])
  )


def _csv(lines: Sequence[Sequence[str]]) -> str:
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerows([_plain(cell) for cell in line] for line in lines)
  return text.getvalue().rstrip('\n')


def _latex(lines: Sequence[Sequence[str]], numeric: bool) -> str:
  header, *rows = (
    ' & '.join(map(_latex_cell, line)) + r' \\' for line in lines
  )
  columns = 'l' + ('r' if numeric else 'l') * (len(lines[0]) - 1)
  return '\n'.join(
    [
      rf'\begin{{tabular}}{{{columns}}}',
      r'\toprule',
      header,
      r'\midrule',
      *rows,
      r'\bottomrule',
      r'\end{tabular}',
    ]
  )


def _plain(cell: str) -> str:
  """Return the text of a cell in Markdown."""
  return cell.replace('`', '').replace(r'\|', '|')


def _latex_cell(cell: str) -> str:
  text = ''.join(_LATEX.get(each, each) for each in _plain(cell))
  is_code = re.fullmatch('`[^`]*`', cell)
  return rf'\texttt{{{text}}}' if is_code else text
