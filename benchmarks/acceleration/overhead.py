"""The speed of every scheme beside the plain model's, in bfloat16."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import fusion_overhead
from benchmarks.acceleration.place import Place
from benchmarks.acceleration.work import Part, Piece
from benchmarks.common import as_flags
from benchmarks.schemes import schemes
from benchmarks.sizes import SIZES

# Schemes of one process, which compiles the plain model once.
_TOGETHER = 5
_FULL = {'rows': 64, 'length': 64, 'sentences': 64, 'rounds': 10}
_TINY = {'rows': 4, 'length': 8, 'sentences': 2, 'steps': 4, 'rounds': 1}


def part(place: Place) -> Part:
  """A piece for each few schemes."""
  size = 'tiny' if place.tiny else 'base'
  names = list(schemes(SIZES[size].layers))[: 2 if place.tiny else None]
  starts = range(0, len(names), _TOGETHER)
  groups = [names[first : first + _TOGETHER] for first in starts]
  pieces = [
    Piece(
      f'schemes {", ".join(group)}',
      0.8 if place.tiny else 0.7 * (len(group) + 1),
      functools.partial(_measure, place, size, group),
    )
    for group in groups
  ]
  return Part(
    'training and decoding steps of every scheme beside the plain model',
    pieces,
    functools.partial(place.measured, 'schemes'),
    _table,
  )


def _measure(
  place: Place, size: str, names: Sequence[str], seconds: float
) -> bool:
  flags = {'size': size, 'dtype': 'bfloat16', 'schemes': ','.join(names)}
  flags |= _TINY if place.tiny else _FULL
  flags['output'] = place.folder / 'schemes.json'
  command = '-m', 'benchmarks.fusion_overhead', *as_flags(flags)
  place.start(f'schemes {names[0]}', *command, seconds=seconds)
  return True


def _table(found: Mapping[str, Any]) -> str:
  """Also of the schemes of a piece that was stopped."""
  summary = fusion_overhead.summaries(found)
  printed = schemes(found['settings']['layers'])
  return fusion_overhead.report({**found, 'summary': summary}, printed)
