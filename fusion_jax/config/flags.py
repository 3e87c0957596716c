"""Flags that all programs share: a config file and overrides of it.

A command line is `--config=FILE.py[:VARIANT]`, or the name of a config that
comes with the package, then any number of overrides such as
`--config.data.batch.tokens=8192`, then the program's own flags.
"""

import argparse
import ast
import contextlib
import dataclasses
import difflib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from fusion_jax.bounds import Positive, choice_fault, number
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.fusion import OPTIONS_OF, options_class
from fusion_jax.config.section import fields_of_section
from fusion_jax.config.serialization import (
  fields_of,
  flatten,
  from_dict,
  from_json,
  to_dict,
)
from fusion_jax.errors import InputError, first_line

_PREFIX = '--config.'
# A link to the folder of the repository; a wheel has the files.
_CONFIGS = Path(__file__).parents[1] / 'configs'


def command_parser(description: str, name: str = '') -> argparse.ArgumentParser:
  """Return the parser of the command `fusion-jax NAME`, or of a module."""
  return argparse.ArgumentParser(
    prog=f'fusion-jax {name}' if name else None,
    description=description,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )


def parse_experiment(
  argv: Sequence[str],
  parser: argparse.ArgumentParser,
  stored: Callable[[argparse.Namespace], ExperimentConfig] | None = None,
) -> tuple[ExperimentConfig, argparse.Namespace]:
  """Read a program's flags."""
  parser.add_argument(
    '--config',
    required=stored is None,
    default='',
    metavar='NAME[:VARIANT]',
    help='a config of the package, or a FILE.py; --config.FIELD=VALUE, with '
    'the dotted name of any field, overrides a part of it',
  )
  rest, overrides = _split_off_overrides(argv)
  arguments = parse_arguments(rest, parser)
  if arguments.config or stored is None:
    config = load_config(arguments.config)
  else:
    config = stored(arguments)
  return override(config, overrides), arguments


def parse_arguments(
  argv: Sequence[str], parser: argparse.ArgumentParser
) -> argparse.Namespace:
  """Parse flags, and register the fusion schemes of the user."""

  def refuse(message: str) -> NoReturn:
    raise InputError(f'{message}; --help lists the flags')

  parser.add_argument(
    '--user_dir',
    action='append',
    default=[],
    metavar='PATH',
    help='a Python package, or one file, that registers fusion schemes; may be '
    'given several times',
  )
  parser.allow_abbrev = False
  parser.error = refuse  # type: ignore[method-assign]
  parser._check_value = _check_choice  # type: ignore[method-assign]
  arguments, unknown = parser.parse_known_args(argv)
  if unknown:
    name = unknown[0].partition('=')[0]
    close = difflib.get_close_matches(name, parser._option_string_actions, n=1)
    hint = f'; did you mean {close[0]}?' if close else ''
    refuse(f'unrecognized arguments: {" ".join(unknown)}{hint}')
  run_installed_schemes()
  for path in vars(arguments).pop('user_dir'):
    run_user_dir(path)
  return arguments


def _check_choice(action: argparse.Action, value: Any) -> None:
  """Refuse a value that is no choice of its flag, and suggest the closest."""
  if action.choices is None:
    return
  if fault := choice_fault(value, action.choices):
    raise argparse.ArgumentError(action, fault)


def step_range(text: str) -> tuple[int, int]:
  """Read a flag's text 'FIRST:LAST', two steps counted from 1."""
  first, _, last = text.partition(':')
  plain = first.isdecimal() and last.isdecimal()
  if not plain or not 1 <= int(first) <= int(last):
    raise argparse.ArgumentTypeError(
      f'must be FIRST:LAST, two steps from 1, got {text!r}'
    )
  return int(first), int(last)


def add_fields(
  parser: argparse._ActionsContainer, options: type, names: Sequence[str] = ()
) -> None:
  """Add a flag without a default for each field of a section."""
  for name, field in fields_of_section(options).items():
    if names and name not in names:
      continue
    kind, text = field.annotation, (field.description or '').replace('%', '%%')
    reads: dict[str, Any]
    if kind is bool:
      reads = {'action': argparse.BooleanOptionalAction}
    elif typing.get_origin(kind) is Literal:
      reads = {'choices': typing.get_args(kind)}
    elif kind in (int, float):
      reads = {'type': number(Annotated[kind, *field.metadata])}
    elif kind is str:
      reads = {}
    else:
      continue
    parser.add_argument(f'--{name}', help=text, **reads)


def fields_given(kind: type, arguments: argparse.Namespace) -> dict[str, Any]:
  """Return the flags that are fields of a dataclass."""
  names = [field.name for field in dataclasses.fields(kind)]
  return {name: getattr(arguments, name) for name in names if name in arguments}


def load_config(name: str) -> ExperimentConfig:
  """Call `get_config` of a config file."""
  if name.endswith('.json'):
    return from_json(Path(name))
  path, colon, variant = name, '', ''
  if not name.endswith('.py') and ':' in name:
    path, colon, variant = name.rpartition(':')
  path = _config_file(path)
  with errors_by_line(path, '--config'):
    get_config = getattr(run_file(path), 'get_config', None)
    if not callable(get_config):
      raise InputError(f'--config: {path} has no function get_config')
    if colon and not inspect.signature(get_config).parameters:
      raise InputError(f'--config: {path} has no variants, got {variant!r}')
    config = get_config(variant) if colon else get_config()
    if not isinstance(config, ExperimentConfig):
      raise InputError(
        f'get_config returns a {type(config).__name__}, it must return an '
        'ExperimentConfig'
      )
    return from_dict(to_dict(config))


def _config_file(name: str) -> str:
  """Return the path of a config that is named by its path or is shipped."""
  shipped = {path.stem: path for path in sorted(_CONFIGS.glob('*.py'))}
  stem = name.removesuffix('.py')
  if os.path.isfile(name):
    return name
  if stem in shipped:
    return str(shipped[stem])
  if os.path.isdir(name):
    raise InputError(f'--config: {name}: is a folder, not a Python file')
  if os.path.dirname(name) or os.path.exists(name):
    raise InputError(f'--config: {name}: no such file')
  raise InputError(
    f'--config: {name}: no such file, and no config of the package: it '
    + choice_fault(stem, shipped)
  )


def language_pair(
  variant: str, languages: Sequence[str] = ()
) -> tuple[str, str]:
  """Read a config's variant of the form SOURCE-TARGET."""
  source, _, target = variant.partition('-')
  codes = languages or [
    code for code in (source, target) if re.fullmatch(r'\w+', code)
  ]
  if source == target or not {source, target} <= set(codes):
    choice = ', '.join(languages) or 'language codes such as en-de'
    raise InputError(
      f'--config: no variant {variant!r}; give SOURCE-TARGET, two different '
      f'{"of " if languages else ""}{choice}'
    )
  return source, target


def override(
  config: ExperimentConfig, overrides: Sequence[tuple[str, str]]
) -> ExperimentConfig:
  """Replace fields of a config."""
  if not overrides:
    return config
  values = to_dict(config)
  # Which options there are depends on the scheme.
  schemes_first = sorted(
    overrides, key=lambda pair: pair[0].rpartition('.')[2] not in OPTIONS_OF
  )
  for name, text in schemes_first:
    _set(values, name, text)
  return from_dict(values)


def _set(values: dict[str, Any], name: str, text: str) -> None:
  *sections, field = name.split('.')
  parent = values
  for depth, section in enumerate(sections):
    path = '.'.join(['config', *sections[:depth]])
    _check_field(path, parent, section, values)
    fields = fields_of(parent[section])
    if not fields:
      raise InputError(f'--config.{name}: {path}.{section} has no fields')
    parent = fields
  _check_field('.'.join(['config', *sections]), parent, field, values)
  before = parent[field]
  if isinstance(before, Mapping):
    raise InputError(
      f'--config.{name}: is a section; give one of its fields: '
      f'{", ".join(before)}'
    )
  parent[field] = _value(text, before)
  if field in OPTIONS_OF and parent[field] != before:
    kind = options_class(field, parent[field], name)
    parent[OPTIONS_OF[field]] = to_dict(kind())


def _check_field(
  path: str, parent: Mapping[str, Any], field: str, values: Mapping[str, Any]
) -> None:
  """Refuse an unknown field, and suggest others."""
  if field in parent:
    return
  leaves = flatten(from_dict(values))
  close = difflib.get_close_matches(field, parent, n=1)
  if near := [f'{path}.{name}' for name in close] or [
    f'config.{leaf}' for leaf in leaves if leaf.endswith(f'.{field}')
  ]:
    suggestion = f'did you mean {" or ".join(near)}?'
  else:
    suggestion = f'{path} has {", ".join(parent)}'
  raise InputError(f'--{path}.{field}: no such field; {suggestion}')


def _split_off_overrides(
  argv: Sequence[str],
) -> tuple[list[str], list[tuple[str, str]]]:
  rest, overrides = [], []
  remaining = iter(argv)
  for argument in remaining:
    if not argument.startswith(_PREFIX):
      rest.append(argument)
      continue
    name, equals, value = argument.removeprefix(_PREFIX).partition('=')
    if not equals:
      value = next(remaining, '--')
      if value.startswith('--'):
        raise InputError(f'{argument}: needs a value')
    overrides.append((name, value))
  return rest, overrides


def _value(text: str, current: Any) -> Any:
  """Read a flag's text as the kind of value that the field has.

  A text that does not fit is returned unchanged: the config's own check then
  names the field and the type that it needs.
  """
  if isinstance(current, str):
    return text
  literal = _literal(text)
  if isinstance(current, list):
    if isinstance(literal, (list, tuple)):
      return list(literal)
    return [part.strip() for part in text.split(',') if part.strip()]
  if isinstance(literal, bool) and not isinstance(current, bool):
    return text
  return literal


def _literal(text: str) -> Any:
  for read in (json.loads, ast.literal_eval):
    try:
      return read(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
      continue
  return text


def add_checkpoint_flags(parser: argparse.ArgumentParser) -> None:
  """Add --step, --average, --average_of and --parameters to a parser."""
  parser.add_argument(
    '--step', type=_step, default='best', help="a step, 'best' or 'last'"
  )
  parser.add_argument(
    '--average',
    type=number(Positive),
    default=1,
    help='number of checkpoints whose mean is loaded',
  )
  parser.add_argument(
    '--average_of',
    choices=('last', 'best'),
    default='last',
    help='which ones: the last or the best, up to --step',
  )
  parser.add_argument(
    '--parameters',
    choices=('last', 'ema'),
    help='of a checkpoint: those after its last update or their moving '
    'average; default: the average if training.ema made one',
  )


def add_precision_flag(parser: argparse._ActionsContainer) -> None:
  """Add --precision to a parser."""
  parser.add_argument(
    '--precision',
    choices=('float32', 'bfloat16', 'int8'),
    default='float32',
    help='of the operands of products, where that is faster; default: float32',
  )


def add_direction_flags(parser: argparse.ArgumentParser) -> None:
  """Add --source_language and --target_language to a parser."""
  for side in ('source', 'target'):
    parser.add_argument(
      f'--{side}_language',
      default='',
      help='needed where the run has several directions',
    )


def _step(text: str) -> int | str:
  if text in ('best', 'last'):
    return text
  if not re.fullmatch('[0-9]{1,10}', text):
    raise argparse.ArgumentTypeError(
      f"must be a step, 'best' or 'last', got {text!r}"
    )
  return int(text)


_ENTRY_POINTS = 'fusion_jax.schemes'


def run_user_dir(path: str) -> None:
  """Run the code of `--user_dir`, which registers schemes."""
  file = os.path.join(path, '__init__.py') if os.path.isdir(path) else path
  if not os.path.isfile(file):
    raise InputError(f'--user_dir: {file}: no such file')
  with errors_by_line(file, '--user_dir'):
    run_file(file)


def run_installed_schemes() -> None:
  """Run the modules that installed packages declare as entry points."""
  for point in importlib.metadata.entry_points(group=_ENTRY_POINTS):
    try:
      point.load()
    except Exception as error:
      raise InputError(
        f'the entry point {point.name} of {_ENTRY_POINTS}, {point.value}: '
        f'{type(error).__name__}: {first_line(error)}'
      ) from error


def run_file(path: str) -> types.ModuleType:
  """Run a Python file, or a package by its `__init__.py`; return its module."""
  file, folder = Path(path), None
  if file.name == '__init__.py':
    file = file.absolute().parent
    folder = [str(file)]
  # Dataclasses look the module up by its name, which must therefore be unique.
  name = f'user_file_{file.stem}'
  spec = importlib.util.spec_from_file_location(
    name, path, submodule_search_locations=folder
  )
  if spec is None or spec.loader is None:
    raise InputError('not a Python file')
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module


@contextlib.contextmanager
def errors_by_line(path: str, flag: str) -> Iterator[None]:
  """Report an error in a user's Python file with its line."""
  try:
    yield
  except (Exception, SystemExit) as error:
    reason = first_line(error)
    if reason.startswith(flag):
      raise
    passed = traceback.walk_tb(error.__traceback__)
    file = os.path.abspath(path)
    lines = [n for frame, n in passed if frame.f_code.co_filename == file]
    if isinstance(error, SyntaxError):
      path, reason = error.filename or path, error.msg
      lines = [error.lineno or 1]
    elif not isinstance(error, InputError):
      reason = f'{type(error).__name__}: {reason}'
    line = f', line {lines[-1]}' if lines else ''
    raise InputError(f'{flag}: {path}{line}: {reason}') from error
