"""Templates, and tables as Markdown, CSV or LaTeX for the package booktabs."""

import argparse
import csv
import io
import re
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
  import jinja2

Format = Literal['markdown', 'csv', 'latex']

_LATEX = str.maketrans(
  {
    '\\': r'\textbackslash{}',
    '~': r'\textasciitilde{}',
    '^': r'\textasciicircum{}',
    '<': r'\textless{}',
    '±': r'$\pm$',
    '–': '--',
    **{character: rf'\{character}' for character in '&%$#_{}'},
  }
)


def add_format_flag(parser: argparse.ArgumentParser, default: str = '') -> None:
  """Add --format to a parser."""
  parser.add_argument(
    '--format',
    choices=typing.get_args(Format),
    default=default,
    help='of the table on stdout; default: '
    f'{default or "one line a system"}; latex is for the package booktabs',
  )


def markdown_name(name: str) -> str:
  """Return a name that Markdown leaves unchanged, in tables too."""
  return f'`{name.replace("`", "").replace("|", chr(92) + "|")}`'


def table(
  form: Format,
  header: Sequence[str],
  rows: Iterable[Sequence[str]],
  numeric: bool = False,
) -> str:
  """Write a table whose cells are Markdown."""
  lines = [header, *rows]
  if form == 'csv':
    text = io.StringIO()
    writer = csv.writer(text, lineterminator='\n')
    writer.writerows(map(_plain, line) for line in lines)
    return text.getvalue().rstrip('\n')
  if form == 'latex':
    return _latex(lines, numeric)
  sides = [':--'] + ['--:'] * (len(header) - 1)
  rule = sides if numeric else ['---'] * len(header)
  return '\n'.join(
    f'| {" | ".join(line)} |' for line in (header, rule, *lines[1:])
  )


def _latex(lines: Sequence[Sequence[str]], numeric: bool) -> str:
  header, *rows = (
    ' & '.join(map(_latex_cell, line)) + r' \\' for line in lines
  )
  columns = 'l' + ('r' if numeric else 'l') * (len(lines[0]) - 1)
  begin = rf'\begin{{tabular}}{{{columns}}}'
  top, middle, bottom = (rf'\{place}rule' for place in ('top', 'mid', 'bottom'))
  end = r'\end{tabular}'
  return '\n'.join([begin, top, header, middle, *rows, bottom, end])


def _plain(cell: str) -> str:
  """Return the text of a cell in Markdown."""
  return cell.replace('`', '').replace(r'\|', '|')


def _latex_cell(cell: str) -> str:
  text = _plain(cell).translate(_LATEX)
  is_name = re.fullmatch('`[^`]*`', cell)
  return rf'\texttt{{{text}}}' if is_name else text


def template(
  path: Path, *folders: Path, **filters: Callable[..., object]
) -> 'jinja2.Template':
  """Read a template, which may include files of its folder and of others."""
  import jinja2  # Here, as it loads slowly.

  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader([path.parent, *folders]),
    autoescape=path.suffix == '.html',
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.filters |= filters
  return environment.get_template(path.name)
