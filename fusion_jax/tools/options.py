"""Print the options of a config: types, bounds, defaults, what they do.

    fusion-jax options [NAME ...]

NAME is an option (`model.width`), a section (`data.batch`) or the end of a name
(`beam_size`). `SIDE` stands for `encoder` or `decoder`; the options of a scheme
are found by the scheme: `fusion.hops`.
"""

import argparse
import difflib
import html
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic.fields import FieldInfo

from fusion_jax.config import ExperimentConfig, SideConfig
from fusion_jax.config.data import Direction
from fusion_jax.config.flags import parse_arguments
from fusion_jax.config.fusion import Only
from fusion_jax.config.section import fields_of_section
from fusion_jax.config.serialization import is_resumable
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES, SOURCES
from fusion_jax.startup import one_line_errors, run_program

_HEAD = """# Options

Every option is a field of a config, and `--config.FIELD=VALUE` replaces it on
the command line:

    fusion-jax train --config=quickstart --workdir=runs/first \\
      --config.data.batch.tokens=1024 --config.model.encoder.fusion=hops

A list takes its items with commas between them. `SIDE` is `encoder` or
`decoder`. A value of the wrong type or outside of its bounds is refused with
one line, and so is an option of a fusion scheme that is not chosen.

*Resume: yes* means that a run that is resumed may change the option. Any other
change is refused, because the run would no longer be the one that was started.
With `optimizer.schedule=cosine` a resumed run must keep `training.steps` too.

`fusion-jax options --markdown` writes this page, and `fusion-jax options NAME`
prints a part of it.
"""

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
  return '\n'.join((_HEAD, *map(_in_markdown, _sections())))


def option_names() -> list[str]:
  """Return the dotted names of the options of every config."""
  return [
    option.name for section in _config_sections() for option in _of(section)
  ]


def find(name: str) -> list[Option]:
  """Return the options of a name, a section or the end of a name."""
  name = re.sub(r'\b(?:encoder|decoder)\b', 'SIDE', name)
  options = [option for section in _sections() for option in _of(section)]
  ways = (
    lambda known: known == name,
    lambda known: known.startswith(f'{name}.'),
    lambda known: known.endswith(f'.{name}'),
  )
  for way in ways:
    found = [x for x in options if way(x.name) or way(x.anchor)]
    if found:
      return found
  known = {end for x in options for end in (x.name, x.name.split('.')[-1])}
  close = difflib.get_close_matches(name, known, n=1)
  hint = f'; did you mean {close[0]}?' if close else ''
  raise InputError(f'no option {name!r}{hint}')


@one_line_errors
def main(argv: list[str]) -> None:
  """Print options as text, or all as the page of the guide."""
  parser = argparse.ArgumentParser(
    prog='fusion-jax options',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('names', nargs='*', metavar='NAME')
  parser.add_argument('--markdown', action='store_true', help='the whole page')
  arguments = parse_arguments(argv, parser)
  if arguments.markdown:
    print(page(), end='')
    return
  for option in _asked(arguments.names):
    text = inspect.cleandoc(option.text).replace('\n', '\n    ')
    print(f'{option.name}\n  {option.facts}\n    {text}\n')


def _asked(names: Sequence[str]) -> Iterator[Option]:
  if not names:
    yield from (x for section in _sections() for x in _of(section))
  for name in names:
    yield from find(name)


def _sections() -> list[Section]:
  """Return the sections of a config, then those of schemes, in order."""
  return [
    *_config_sections(),
    *_of_rows('fusion', 'options', SCHEMES),
    *_of_rows('attention', 'attention_options', SOURCES),
  ]


def _config_sections() -> list[Section]:
  walked = dict.fromkeys(_walk('', ExperimentConfig))
  return [Section(path, path, path, options) for path, options in walked]


def _of_rows(
  field: str, section: str, rows: Mapping[str, Any]
) -> Iterator[Section]:
  for name, row in rows.items():
    if fields_of_section(row.options):
      title = f'model.SIDE.{field}={name}'
      path = f'model.SIDE.{section}'
      yield Section(title, path, f'{field}.{name}', row.options)


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
  for name, field in fields_of_section(section.options).items():
    if not _is_section(field.annotation):
      yield _option(section, name, field)


def _option(section: Section, field_name: str, field: FieldInfo) -> Option:
  name = _dotted(section.path, field_name)
  facts = [
    _kind(field),
    'required' if field.is_required() else f'default {_value(field.default)}',
    f'resume: {"yes" if _resumable(name) else "no"}',
    *(
      f'read only by the {only.side}'
      for only in field.metadata
      if isinstance(only, Only)
    ),
  ]
  anchor = _dotted(section.anchor, field_name)
  return Option(name, anchor, '; '.join(facts), field.description or '')


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


def _resumable(name: str) -> bool:
  return is_resumable(name.replace('.NUMBER.', '.0.'))


def _kind(field: FieldInfo) -> str:
  kind: Any = field.annotation
  if typing.get_origin(kind) is Literal:
    return ', '.join(map(_value, typing.get_args(kind)))
  if typing.get_origin(kind) is tuple:
    return 'list'
  if kind is Any:
    return 'section'
  return ' '.join((_KINDS[kind], *_bounds(field))).strip()


def _bounds(field: FieldInfo) -> Iterator[str]:
  for bound, word in _BOUNDS.items():
    for note in field.metadata:
      if (limit := getattr(note, bound, None)) is not None:
        yield f'{word} {limit:,}'


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
