"""Formats of the lines of input and output: text or JSON."""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fusion_jax.cli.text_io import open_input, read_lines
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.score import Scored
from fusion_jax.decoding.translate import Translation
from fusion_jax.errors import InputError
from fusion_jax.json_input import parse_json

# Number of faults that a message names.
_NAMED = 3
_FIELDS = 'source', 'target', 'prefix'


@dataclasses.dataclass(frozen=True)
class Line:
  """Line of input.

  Attributes:
    source: Text of the source.
    target: Translation to be scored.
    prefix: Beginning of the translation to be found.
    others: Fields of a JSON line that are passed on to the output.
  """

  source: str
  target: str = ''
  prefix: str = ''
  others: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def open_text(
  source: str, target: str = '', prefix: str = '', again: bool = False
) -> Iterator[Iterator[Line]]:
  """Read files whose lines of the same number belong together."""
  paths = {'source': source, 'target': target, 'prefix': prefix}
  given = {key: p for key, p in paths.items() if p or key == 'source'}
  with contextlib.ExitStack() as stack:
    files = [
      (path or 'stdin', stack.enter_context(open_input(path)))
      for path in given.values()
    ]
    rows = _side_by_side([(n, read_lines(f, n, again)) for n, f in files])
    yield (Line(**dict[str, Any](zip(given, row, strict=True))) for row in rows)


def _side_by_side(
  files: Sequence[tuple[str, Iterable[str]]],
) -> Iterator[tuple[str, ...]]:
  """Yield the lines of named files side by side."""
  names, lines = zip(*files, strict=True)
  for number, row in enumerate(itertools.zip_longest(*lines)):
    if None in row:
      short = names[row.index(None)]
      long = next(n for n, e in zip(names, row, strict=True) if e is not None)
      raise InputError(
        f'{short}: {number:,} lines, fewer than {long}: line i of one must '
        'belong to line i of the other'
      )
    yield row


@contextlib.contextmanager
def open_json(
  path: str, needed: Sequence[str], again: bool = False
) -> Iterator[Iterator[Line]]:
  """Read JSON lines: objects with a text 'source', 'target' or 'prefix'."""
  name = path or 'stdin'
  with open_input(path) as file:
    # Unlike a generator, this goes on after a line that is wrong.
    yield map(
      lambda number, text: _parsed(text, f'{name}, line {number}', needed),
      itertools.count(1),
      read_lines(file, name, again),
    )


def check_lines(
  lines: Iterator[Line], check: Callable[[int, Line], object]
) -> int:
  """Read all lines and refuse them if any is wrong."""
  faults, number = [], 0
  for number in itertools.count(1):
    try:
      check(number, next(lines))
    except StopIteration:
      break
    except InputError as error:
      faults.append(str(error))
  if len(faults) > _NAMED:
    faults[_NAMED:] = [f'{len(faults):,} such faults in all']
  if faults:
    raise InputError('; '.join(faults))
  return number - 1


def _parsed(text: str, where: str, needed: Sequence[str]) -> Line:
  found = parse_json(text, where)
  if not isinstance(found, dict):
    raise InputError(f"{where}: must be an object like {{'source': 'text'}}")
  for field in needed:
    if field not in found:
      raise InputError(f'{where}: the object has no {field!r}')
  own = {field: found.pop(field) for field in _FIELDS if field in found}
  for field, value in own.items():
    if not isinstance(value, str):
      raise InputError(f'{where}: {field!r} must be text, got {value!r}')
  return Line(**own, others=found)


def translation_json(
  index: int, line: Line, translations: Sequence[Translation], to: Tokenizer
) -> str:
  """Format everything known about the translations of a line as JSON."""
  found = [
    {
      'text': each.text,
      'score': each.score,
      'log_probability': each.log_probability,
      'tokens': to.pieces(i for pair in each.pairs for i in pair.target),
      'token_log_probabilities': list(each.token_log_probabilities),
    }
    for each in translations
  ]
  return _dumped(index, line, {'source': line.source, 'translations': found})


def translation_text(
  index: int, translations: Sequence[Translation], n_best: int, per_token: bool
) -> Iterator[str]:
  """Yield the best translation of a line, or the n best, as text."""
  if not n_best:
    yield translations[0].text
    return
  for each in translations:
    columns = [str(index), each.text, f'{each.score:.6f}']
    if per_token:
      columns.append(_numbers(each.token_log_probabilities))
    yield ' ||| '.join(columns)


def score_json(index: int, line: Line, scored: Scored) -> str:
  """Format everything known about the score of a pair as JSON, in one line."""
  return _dumped(
    index,
    line,
    {
      'source': line.source,
      'target': line.target,
      'log_probability': scored.log_probability,
      'mean': scored.mean,
      'score': scored.score,
      'token_log_probabilities': list(scored.tokens),
    },
  )


def score_text(scored: Scored, per_token: bool) -> str:
  """Format sum, mean, score and subword values of a pair, between tabs."""
  numbers = [scored.log_probability, scored.mean, scored.score]
  columns = [f'{number:.6f}' for number in numbers]
  if per_token:
    columns.append(_numbers(scored.tokens))
  return '\t'.join(columns)


def _numbers(values: Iterable[float]) -> str:
  return ' '.join(f'{value:.6f}' for value in values)


def _dumped(index: int, line: Line, found: Mapping[str, Any]) -> str:
  whole = {**line.others, 'index': index, **found}
  return json.dumps(whole, ensure_ascii=False)
