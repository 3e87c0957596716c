"""What a line of input says, and what a line of output: text or JSON."""

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fusion_jax.cli.text_io import open_input, read_lines
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.score import Scored
from fusion_jax.decoding.translate import Translation
from fusion_jax.errors import InputError
from fusion_jax.json_input import parse_json

_FIELDS = 'source', 'target', 'prefix'


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of input.

  Attributes:
    source: the text.
    target: a translation of it, to be scored.
    prefix: what its translation begins with.
    others: fields of a JSON line that are handed on to the output.
  """

  source: str
  target: str = ''
  prefix: str = ''
  others: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def open_text(
  source: str, target: str = '', prefix: str = ''
) -> Iterator[Iterator[Line]]:
  """Reads files of which line i belongs to line i of the others.

  Args:
    source: a path; empty for stdin.
    target: a path; empty for none.
    prefix: likewise.

  Yields:
    The lines.

  Raises:
    InputError: a file cannot be opened, or, while lines are taken, one has
      fewer lines than another.
  """
  paths = {'source': source, 'target': target, 'prefix': prefix}
  given = {key: p for key, p in paths.items() if p or key == 'source'}
  with contextlib.ExitStack() as stack:
    files = [
      (path or 'stdin', stack.enter_context(open_input(path)))
      for path in given.values()
    ]
    rows = _side_by_side([(name, read_lines(f, name)) for name, f in files])
    yield (Line(**dict(zip(given, row, strict=True))) for row in rows)


def _side_by_side(
  files: Sequence[tuple[str, Iterable[str]]],
) -> Iterator[tuple[str, ...]]:
  """The lines of named files."""
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
def open_json(path: str, needed: Sequence[str]) -> Iterator[Iterator[Line]]:
  """Reads JSON lines: objects with a text 'source', 'target' or 'prefix'.

  Args:
    path: of the file; empty for stdin.
    needed: fields that every object must have.

  Yields:
    The lines.

  Raises:
    InputError: the file cannot be opened, or, while lines are taken, one is
      no such object.
  """
  name = path or 'stdin'
  with open_input(path) as file:
    yield (
      _parsed(text, f'{name}, line {number}', needed)
      for number, text in enumerate(read_lines(file, name), start=1)
    )


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
  """All that is known of the translations of a line.

  Args:
    index: of the line, from 0.
    line: what was translated.
    translations: best first.
    to: the target tokenizer, for the names of the subwords.

  Returns:
    An object in one line; 'tokens' end with the end symbol.
  """
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
  """One line, or the n best.

  Args:
    index: of the line, from 0.
    translations: best first.
    n_best: 0: the best one, alone.
    per_token: add the log-probabilities of the subwords to the n best.

  Yields:
    'index ||| text ||| score' or the text.
  """
  if not n_best:
    yield translations[0].text
    return
  for each in translations:
    columns = [str(index), each.text, f'{each.score:.6f}']
    if per_token:
      columns.append(_numbers(each.token_log_probabilities))
    yield ' ||| '.join(columns)


def score_json(index: int, line: Line, scored: Scored) -> str:
  """All that is known of the score of a pair, an object in one line."""
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
  """Sum, mean and score of a pair, and of each subword, between tabs."""
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
