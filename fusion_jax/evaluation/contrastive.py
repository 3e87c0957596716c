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
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic

from fusion_jax.config.flags import (
  add_checkpoint_flags,
  add_direction_flags,
  parse_arguments,
)
from fusion_jax.errors import InputError
from fusion_jax.files import as_type, open_file, parse_json, write_whole
from fusion_jax.runs.directory import check_output
from fusion_jax.startup import one_line_errors, run_program, start_logging

logger = logging.getLogger(__name__)

# Fields that group pairs, taken from the error or else from the item.
_BY_NAME = ('type', 'origin')
_BY_NUMBER = ('distance', 'frequency')


_Number = Annotated[int, pydantic.Field(strict=True, ge=-(2**31), lt=2**31)]


@dataclasses.dataclass(frozen=True)
class _Grouped:
  """Numeric fields that both an item and an error may have."""

  distance: _Number = 0
  frequency: _Number = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ErrorShape(_Grouped):
  contrastive: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ItemShape(_Grouped):
  source: str
  reference: str
  errors: list[_ErrorShape]


@dataclasses.dataclass(frozen=True)
class Item:
  """A source with a right and wrong translations.

  Attributes:
    groups: For each wrong translation, names of the groups it counts in.
  """

  source: str
  reference: str
  contrastive: tuple[str, ...]
  groups: tuple[tuple[str, ...], ...]

  @property
  def pairs(self) -> list[tuple[str, str]]:
    """Source and translation, the reference first."""
    translations = (self.reference, *self.contrastive)
    return [(self.source, translation) for translation in translations]


def read_items(path: Path) -> list[Item]:
  """Read a file in the ContraWSD JSON format."""
  with open_file(path) as file:
    content = file.read()
  values = parse_json(content, str(path))
  if not isinstance(values, list) or not values:
    raise InputError(f'{path}: must be a list of items, and not empty')
  numbered = enumerate(values, start=1)
  return [_item(value, f'{path}, item {number}') for number, value in numbered]


def _item(value: Any, where: str) -> Item:
  as_type(value, _ItemShape, where)
  errors = value['errors']
  return Item(
    value['source'],
    value['reference'],
    tuple(error['contrastive'] for error in errors),
    tuple(_groups(value | error) for error in errors),
  )


def _groups(fields: dict[str, Any]) -> tuple[str, ...]:
  names = [f'{name} {fields[name]}' for name in _BY_NAME if name in fields]
  numbers = [
    f'{name} {_bin(fields[name])}' for name in _BY_NUMBER if name in fields
  ]
  return ('pairs', *names, *numbers)


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
  right: collections.Counter[str] = collections.Counter()
  total: collections.Counter[str] = collections.Counter()
  for item, (reference, *wrong) in zip(items, scores, strict=True):
    total['items'] += 1
    right['items'] += all(reference > score for score in wrong)
    for score, groups in zip(wrong, item.groups, strict=True):
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
    logger.warning(
      '%d items have a side of more than max_source_length=%d subwords and are '
      'left out: number %s',
      fitting.count(False),
      run.config.decoding.max_source_length,
      ', '.join(str(n) for n, fits in enumerate(fitting, 1) if not fits),
    )
  chosen = itertools.compress(items, fitting)
  pairs = itertools.chain.from_iterable(item.pairs for item in chosen)
  scored = scorer.score(pairs, 'translation')
  scores: list[list[float] | None] = []
  for item, fits in zip(items, fitting, strict=True):
    of_item = itertools.islice(scored, len(item.pairs)) if fits else ()
    values = [
      pair.mean if arguments.score == 'mean' else pair.log_probability
      for pair in of_item
    ]
    scores.append(values or None)
  progress.finish()
  return scores


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='fusion-jax contrastive',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
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
  every = read_items(arguments.input)
  items = [item for item in every if item.contrastive]
  if not items:
    raise InputError(f'{arguments.input}: no item has a wrong translation')
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
