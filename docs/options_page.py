"""The page of all options, made from the sections of a config.

MkDocs runs this file as a hook and adds the page `options.md` to the site.
"""

import html
import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

from pydantic.fields import FieldInfo

from fusion_jax.config import ExperimentConfig, SideConfig
from fusion_jax.config.directions import Direction
from fusion_jax.config.fusion import Only
from fusion_jax.config.section import fields_of_section
from fusion_jax.config.serialization import is_resumable

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


def page() -> str:
  """Return the page in Markdown."""
  return '\n'.join((_HEAD, *map(_section, *zip(*_sections(), strict=True))))


def option_names() -> list[str]:
  """Return the dotted names of all options, as the page prints them."""
  return [
    _dotted(path, name)
    for path, cls in _sections()
    for name, field in fields_of_section(cls).items()
    if not _is_section(field.annotation)
  ]


def on_files(files: Any, config: Any) -> Any:
  """Add the page to the files of the site; MkDocs calls this."""
  from mkdocs.structure.files import File

  files.append(File.generated(config, PATH, content=page()))
  return files


def _sections() -> dict[tuple[str, type], None]:
  """Return the dotted name and the class of every section, in order."""
  return dict.fromkeys(_walk('', ExperimentConfig))


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


def _section(path: str, cls: type) -> str:
  title = f'`{path}` {{ #{path} }}' if path else 'The whole experiment'
  parts = [f'## {title}', _paragraphs(inspect.getdoc(cls) or '')]
  for name, field in fields_of_section(cls).items():
    if not _is_section(field.annotation):
      parts.append(_option(_dotted(path, name), field))
  return '\n\n'.join(parts) + '\n'


def _option(name: str, field: FieldInfo) -> str:
  facts = [
    _kind(field),
    'required' if field.is_required() else f'default {_value(field.default)}',
    f'resume: {"yes" if _resumable(name) else "no"}',
    *(f'read only by {_readers(x)}' for x in field.metadata if _is_only(x)),
  ]
  return '\n\n'.join(
    (
      f'### `{name}` {{ #{name} }}',
      '; '.join(facts) + '\n{ .facts }',
      _paragraphs(field.description or ''),
    )
  )


def _resumable(name: str) -> bool:
  return is_resumable(name.replace('.NUMBER.', '.0.'))


def _is_only(note: Any) -> bool:
  return isinstance(note, Only)


def _readers(only: Only) -> str:
  return ' or '.join(f'`{reader}`' for reader in only.readers)


def _kind(field: FieldInfo) -> str:
  kind = field.annotation
  if typing.get_origin(kind) is Literal:
    return ', '.join(map(_value, typing.get_args(kind)))
  if typing.get_origin(kind) is tuple:
    return 'list'
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
