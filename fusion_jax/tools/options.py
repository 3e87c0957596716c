"""Print the options of a config: types, bounds, defaults, what they do.

    fusion-jax options [NAME ...]

NAME is an option (`model.width`), a section (`data.batch`) or the end of a name
(`beam_size`). `SIDE` stands for `encoder` or `decoder`; the options of a scheme
are found by the scheme: `fusion.hops`.
"""

import difflib
import html
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic.fields import FieldInfo

from fusion_jax.config import ExperimentConfig, SideConfig
from fusion_jax.config.data import Direction
from fusion_jax.config.flags import command_parser, parse_arguments
from fusion_jax.config.fusion import Only
from fusion_jax.config.section import fields_of_section
from fusion_jax.config.serialization import RESUMABLE, is_among
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES, SOURCES
from fusion_jax.startup import one_line_errors, run_program

# The begin of the page.
_HEAD = Path(__file__).with_name('options.md')
_KINDS = types.MappingProxyType(
  {bool: 'true or false', int: 'whole number', float: 'number', str: 'text'}
)
# Bounds of pydantic's metadata, in the order in which they are printed.
_BOUNDS = types.MappingProxyType(
  {'ge': 'from', 'gt': 'above', 'le': 'up to', 'lt': 'below'}
)


class Section(NamedTuple):
  """A class of options: heading, begin of their names, begin of anchors."""

  title: str
  path: str
  anchor: str
  options: type


class Option(NamedTuple):
  """An option: dotted name, anchor, facts and text."""

  name: str
  anchor: str
  facts: str
  text: str


def page() -> str:
  """Return the page of all options in Markdown."""
  return '\n'.join((_HEAD.read_text('utf-8'), *map(_in_markdown, _sections())))


def find(name: str) -> list[Option]:
  """Return the options of a name, a section or the end of a name."""
  name = re.sub(r'\b(?:encoder|decoder)\b', 'SIDE', name)
  options = every_option()
  ways = (
    lambda known: known == name,
    lambda known: known.startswith(f'{name}.'),
    lambda known: known.endswith(f'.{name}'),
  )
  for way in ways:
    if found := [x for x in options if way(x.name) or way(x.anchor)]:
      return found
  known = {end for x in options for end in (x.name, x.name.split('.')[-1])}
  close = difflib.get_close_matches(name, known, n=1)
  hint = f'; did you mean {close[0]}?' if close else ''
  raise InputError(f'no option {name!r}{hint}')


@one_line_errors
def main(argv: list[str]) -> None:
  """Print options as text, or all as the page of the guide."""
  parser = command_parser(__doc__, 'options')
  parser.add_argument('names', nargs='*', metavar='NAME')
  parser.add_argument('--markdown', action='store_true', help='the whole page')
  flags = parse_arguments(argv, parser)
  if flags.markdown:
    print(page(), end='')
    return
  found = [option for name in flags.names for option in find(name)]
  for option in found if flags.names else every_option():
    text = inspect.cleandoc(option.text).replace('\n', '\n    ')
    print(f'{option.name}\n  {option.facts}\n    {text}\n')


def every_option() -> list[Option]:
  """Return the options of a config, then those of schemes, in order."""
  return [option for section in _sections() for option in _of(section)]


def _sections() -> Iterator[Section]:
  """Yield the sections of a config, then those of schemes, in order."""
  for path, options in dict.fromkeys(_walk('', ExperimentConfig)):
    yield Section(path, path, path, options)
  for field, path, rows in (
    ('fusion', 'options', SCHEMES),
    ('attention', 'attention_options', SOURCES),
  ):
    for name, row in rows.items():
      if fields_of_section(row.options):
        title = f'model.SIDE.{field}={name}'
        anchor = f'{field}.{name}'
        yield Section(title, f'model.SIDE.{path}', anchor, row.options)


def _walk(path: str, cls: type) -> Iterator[tuple[str, type]]:
  yield path, cls
  for name, field in fields_of_section(cls).items():
    kind: Any = field.annotation
    if kind is SideConfig:
      yield from _walk(_dotted(path, 'SIDE'), SideConfig)
    elif _is_section(kind):
      yield from _walk(_dotted(path, name), kind)
    elif Direction in typing.get_args(kind):
      yield from _walk(_dotted(path, f'{name}.NUMBER'), Direction)


def _dotted(*names: str) -> str:
  return '.'.join(filter(None, names))


def _is_section(kind: Any) -> bool:
  return hasattr(kind, '__pydantic_fields__')


def _of(section: Section) -> Iterator[Option]:
  for field_name, field in fields_of_section(section.options).items():
    if not _is_section(field.annotation):
      name = _dotted(section.path, field_name)
      anchor = _dotted(section.anchor, field_name)
      facts = '; '.join(_facts(name, field))
      yield Option(name, anchor, facts, field.description or '')


def _facts(name: str, field: FieldInfo) -> Iterator[str]:
  yield _kind(field)
  yield (
    'required' if field.is_required() else f'default {_value(field.default)}'
  )
  resumable = is_among(name.replace('.NUMBER.', '.0.'), RESUMABLE)
  yield f'resume: {"yes" if resumable else "no"}'
  for note in field.metadata:
    if isinstance(note, Only):
      yield f'read only by the {note.side}'


def _in_markdown(section: Section) -> str:
  title = f'`{section.title}`' if section.title else 'The whole experiment'
  parts = [
    f'## {_anchored(section.anchor)}{title}',
    _paragraphs(inspect.getdoc(section.options) or ''),
  ]
  for option in _of(section):
    parts += [
      f'### {_anchored(option.anchor)}`{option.name}`',
      option.facts,
      _paragraphs(option.text),
    ]
  return '\n\n'.join(filter(None, parts)) + '\n'


def _anchored(name: str) -> str:
  """An anchor that code hosts keep as well as the site."""
  return f'<a id="{name}"></a>' if name else ''


def _kind(field: FieldInfo) -> str:
  kind: Any = field.annotation
  if typing.get_origin(kind) is Literal:
    return ', '.join(map(_value, typing.get_args(kind)))
  if typing.get_origin(kind) is tuple:
    return 'list'
  if kind is Any:
    return 'section'
  bounds = [
    f'{word} {limit:,}'
    for bound, word in _BOUNDS.items()
    for note in field.metadata
    if (limit := getattr(note, bound, None)) is not None
  ]
  return ' '.join((_KINDS[kind], *bounds))


def _value(value: Any) -> str:
  """Return a default as it would be written on the command line."""
  if isinstance(value, tuple):
    value = ','.join(value)
  elif isinstance(value, bool):
    value = str(value).lower()
  elif value is None:
    return 'those of the scheme'
  return 'empty' if value == '' else f'`{value}`'


def _paragraphs(text: str) -> str:
  """Return a docstring as Markdown that shows it literally."""
  lines = (
    f'  {line}' if line.startswith('  ') else _literal(line)
    for line in inspect.cleandoc(text).splitlines()
  )
  # A block of indented lines begins after an empty line.
  return re.sub(r'(?m)^(\S.*)\n(    )', r'\1\n\n\2', '\n'.join(lines))


def _literal(line: str) -> str:
  """Return a line without the meaning of its characters in Markdown."""
  parts = line.split('`')
  parts[::2] = [
    re.sub(r'([\\*_\[\]])', r'\\\1', html.escape(part, quote=False))
    for part in parts[::2]
  ]
  return '`'.join(parts)


if __name__ == '__main__':
  run_program(main)
