"""The page of all options, made from the sections of a config.

MkDocs runs this file as a hook and adds the page `options.md` to the site.
"""

import html
import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from pydantic.fields import FieldInfo

from fusion_jax.config import ExperimentConfig, SideConfig
from fusion_jax.config.data import Direction
from fusion_jax.config.fusion import Only
from fusion_jax.config.section import fields_of_section
from fusion_jax.config.serialization import is_resumable
from fusion_jax.fusion import SCHEMES, SOURCES

PATH = 'options.md'

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
"""

_KINDS = types.MappingProxyType(
  {bool: 'true or false', int: 'whole number', float: 'number', str: 'text'}
)
# Bounds of pydantic's metadata, in the order in which they are printed.
_BOUNDS = types.MappingProxyType(
  {'ge': 'from', 'gt': 'above', 'le': 'up to', 'lt': 'below'}
)


class _Section(NamedTuple):
  """A section of the page: heading, beginning of its options' names, anchor."""

  title: str
  path: str
  anchor: str
  options: type


def page() -> str:
  """Return the page in Markdown."""
  return '\n'.join((_HEAD, *map(_section, _sections())))


def option_names() -> list[str]:
  """Return the dotted names of the options of every config."""
  return [
    _dotted(section.path, name)
    for section in _config_sections()
    for name, field in fields_of_section(section.options).items()
    if not _is_section(field.annotation)
  ]


def on_files(files: Any, config: Any) -> Any:
  """Add the page to the files of the site; MkDocs calls this."""
  from mkdocs.structure.files import File

  files.append(File.generated(config, PATH, content=page()))
  return files


def _sections() -> list[_Section]:
  """Return the sections of a config, then those of schemes, in order."""
  return [
    *_config_sections(),
    *_of_rows('fusion', 'options', SCHEMES),
    *_of_rows('attention', 'attention_options', SOURCES),
  ]


def _config_sections() -> list[_Section]:
  walked = dict.fromkeys(_walk('', ExperimentConfig))
  return [_Section(path, path, path, options) for path, options in walked]


def _of_rows(
  field: str, section: str, rows: Mapping[str, Any]
) -> Iterator[_Section]:
  for name, row in rows.items():
    if fields_of_section(row.options):
      title = f'model.SIDE.{field}={name}'
      path = f'model.SIDE.{section}'
      yield _Section(title, path, f'{field}.{name}', row.options)


def _walk(path: str, cls: type) -> Iterator[tuple[str, type]]:
  yield path, cls
  for name, field in fields_of_section(cls).items():
    if field.annotation is SideConfig:
      yield from _walk(_dotted(path, 'SIDE'), SideConfig)
    elif _is_section(field.annotation):
      yield from _walk(_dotted(path, name), field.annotation)
    elif Direction in typing.get_args(field.annotation):
      yield from _walk(_dotted(path, f'{name}.NUMBER'), Direction)


def _dotted(*names: str) -> str:
  return '.'.join(filter(None, names))


def _is_section(kind: Any) -> bool:
  return hasattr(kind, '__pydantic_fields__')


def _section(section: _Section) -> str:
  title, options = section.title, section.options
  head = (
    f'`{title}` {{ #{section.anchor} }}' if title else 'The whole experiment'
  )
  parts = [f'## {head}', _paragraphs(inspect.getdoc(options) or '')]
  for name, field in fields_of_section(options).items():
    if not _is_section(field.annotation):
      parts.append(_option(section, name, field))
  return '\n\n'.join(parts) + '\n'


def _option(section: _Section, field_name: str, field: FieldInfo) -> str:
  name = _dotted(section.path, field_name)
  anchor = _dotted(section.anchor, field_name)
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
  return '\n\n'.join(
    (
      f'### `{name}` {{ #{anchor} }}',
      '; '.join(facts) + '\n{ .facts }',
      _paragraphs(field.description or ''),
    )
  )


def _resumable(name: str) -> bool:
  return is_resumable(name.replace('.NUMBER.', '.0.'))


def _kind(field: FieldInfo) -> str:
  kind = field.annotation
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
