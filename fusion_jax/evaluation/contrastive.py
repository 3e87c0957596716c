r"""Contrastive evaluation: how often a model prefers the right translation.

    fusion-jax contrastive --workdir=DIR \
        --input=FILE.json[.gz] [--output=SCORES.json]

An item has a source, a reference and translations with one error each (Sennrich
2017; Rios et al. 2017, whose ContraWSD format is read). A pair counts as right
if the reference scores higher than the wrong translation.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic

from fusion_jax.config.flags import (
  add_checkpoint_flags,
  add_direction_flags,
  command_parser,
  parse_arguments,
)
from fusion_jax.errors import InputError
from fusion_jax.files import as_type, open_file, parse_json, write_whole
from fusion_jax.runs.directory import check_output
from fusion_jax.startup import one_line_errors, run_program, start_logging

logger = logging.getLogger(__name__)

_Number = Annotated[int, pydantic.Field(strict=True, ge=-(2**31), lt=2**31)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Grouped:
  """Fields that group pairs: of the error, or else of its item."""

  type: Any = None
  origin: Any = None
  distance: _Number | None = None
  frequency: _Number | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrong(_Grouped):
  """A translation with an error."""

  contrastive: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item(_Grouped):
  """A source with a right and wrong translations, in the ContraWSD format."""

  source: str
  reference: str
  errors: list[Wrong]

  @property
  def pairs(self) -> list[tuple[str, str]]:
    """Source and translation, the reference first."""
    wrong = (error.contrastive for error in self.errors)
    return [(self.source, text) for text in (self.reference, *wrong)]

  def groups(self, error: Wrong) -> Iterator[str]:
    """Yield the names of the groups that a wrong translation counts in."""
    yield 'pairs'
    for field in dataclasses.fields(_Grouped):
      value = getattr(error, field.name)
      value = getattr(self, field.name) if value is None else value
      if value is not None:
        numeric = field.name in ('distance', 'frequency')
        yield f'{field.name} {_bin(value) if numeric else value}'


def read_items(path: Path) -> list[Item]:
  """Read a file in the ContraWSD JSON format."""
  with open_file(path) as file:
    content = file.read()
  values = parse_json(content, str(path))
  items: list[Item] = as_type(values, list[Item], str(path))
  if not any(item.errors for item in items):
    raise InputError(f'{path}: no item has a wrong translation')
  return items


def _bin(number: int) -> str:
  """Return the bin of a number: 0, 1, 2-3, 4-7 and so on."""
  if number < 2:
    return str(number)
  low = 2 ** (number.bit_length() - 1)
  return f'{low}-{2 * low - 1}'


def accuracies(
  items: Sequence[Item], scores: Iterable[Sequence[float]]
) -> dict[str, tuple[int, int]]:
  """Count how often the reference is preferred, and all comparisons."""
  right, total = collections.Counter[str](), collections.Counter[str]()
  for item, (reference, *wrong) in zip(items, scores, strict=True):
    total['items'] += 1
    right['items'] += all(reference > score for score in wrong)
    for score, error in zip(wrong, item.errors, strict=True):
      groups = [*item.groups(error)]
      total.update(groups)
      right.update(groups if reference > score else ())
  return {name: (right[name], total[name]) for name in total}


def report(accuracy: dict[str, tuple[int, int]]) -> str:
  """Write a line for each accuracy."""
  width = max(map(len, accuracy))
  return '\n'.join(
    f'{name:{width}}  {right / total:7.2%}  {right:,} of {total:,}'
    for name, (right, total) in accuracy.items()
  )


def _scores(
  arguments: argparse.Namespace, items: Sequence[Item]
) -> list[list[float] | None]:
  """Score all items; None for those with a side that is too long."""
  # Imported after the flags are read, because JAX loads slowly.
  from fusion_jax.decoding.ensemble import load_chosen
  from fusion_jax.decoding.score import Scorer
  from fusion_jax.startup import Progress

  run = load_chosen(arguments)
  progress = Progress(sum(len(item.pairs) for item in items), 'translations')
  scorer = Scorer(run, run.config.decoding, progress.add)
  fitting = [all(scorer.fits(*pair) for pair in item.pairs) for item in items]
  if not all(fitting):
    long = [str(n) for n, fits in enumerate(fitting, 1) if not fits]
    logger.warning(
      '%d items have a side of more than max_source_length=%d subwords and are '
      'left out: number %s',
      *(len(long), run.config.decoding.max_source_length, ', '.join(long)),
    )
  chosen = itertools.compress(items, fitting)
  pairs = itertools.chain.from_iterable(item.pairs for item in chosen)
  scored = scorer.score(pairs, 'translation')
  name = 'mean' if arguments.score == 'mean' else 'log_probability'
  values = (getattr(pair, name) for pair in scored)
  scores = [
    list(itertools.islice(values, len(item.pairs))) if fits else None
    for item, fits in zip(items, fitting, strict=True)
  ]
  progress.finish()
  return scores


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = command_parser(__doc__, 'contrastive')
  add = parser.add_argument
  add('--workdir', type=Path, required=True, help='the run directory')
  add('--input', type=Path, required=True, help='the items, JSON')
  add(
    '--output',
    type=Path,
    help='a JSON file for the scores of each item; null: left out',
  )
  add('--score', choices=('sum', 'mean'), default='sum', help='over subwords')
  add_checkpoint_flags(parser)
  add_direction_flags(parser)
  return parse_arguments(argv, parser)


@one_line_errors
def main(argv: list[str]) -> None:
  """Score the items and print the accuracies."""
  arguments = _parse(argv)
  start_logging()
  check_output(arguments.output or '')
  items = [item for item in read_items(arguments.input) if item.errors]
  scores = _scores(arguments, items)
  pairs = zip(items, scores, strict=True)
  scored = [(item, values) for item, values in pairs if values]
  if not scored:
    raise InputError(
      f'{arguments.input}: every item has a side that is too long'
    )
  if arguments.output:
    text = json.dumps(scores, indent=1) + '\n'
    write_whole(arguments.output, text.encode())
  print(report(accuracies(*zip(*scored, strict=True))))


if __name__ == '__main__':
  run_program(main)
