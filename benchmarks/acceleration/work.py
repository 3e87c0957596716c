"""Pieces of work in a budget of minutes: what is finished is not repeated."""

import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.common import log
from fusion_jax.errors import first_line

_RESUMES = 'the same command resumes'


class Piece(NamedTuple):
  """The smallest piece of work that is done by itself.

  Attributes:
    name: Name; it begins with that of its part.
    minutes: Minutes that it probably takes.
    run: Function that works for at most a number of seconds, and returns
      whether it has finished. It finds again what it left in files.
    missing: What it needs and does not have; '': nothing.
  """

  name: str
  minutes: float
  run: Callable[[float], bool]
  missing: str = ''


class Part(NamedTuple):
  """Pieces that make one table.

  does: what it measures, in one line.
  pieces: in order.
  read: what has been measured so far, as JSON has it; empty: nothing.
  table: for people, of what `read` gives.
  """

  does: str
  pieces: Sequence[Piece]
  read: Callable[[], Any]
  table: Callable[[Any], str]


class State(NamedTuple):
  """What became of the pieces, by their names.

  finished: minutes that each took.
  failed: why, one line.
  left_out: why.
  """

  finished: dict[str, float]
  failed: dict[str, str]
  left_out: dict[str, str]


def carry_out(
  parts: Mapping[str, Part],
  state: State,
  minutes_left: Callable[[], float],
  save: Callable[[], None],
) -> None:
  """Does the pieces that are not finished, the first ones first.

  A piece that would take longer than there is time is left out; later ones
  may still fit. `save` is called whenever the state has changed.
  """
  for part in parts.values():
    for piece in part.pieces:
      if piece.name in state.finished:
        continue
      minutes, left = expected(piece, part, state), minutes_left()
      reason = piece.missing
      if not reason and minutes > left:
        reason = (
          f'about {minutes:.1f} minutes, of which {max(left, 0):.1f} are '
        )
        reason += f'left: {_RESUMES}'
      state.left_out[piece.name] = reason or f'interrupted: {_RESUMES}'
      if not reason:
        save()
        _do(piece, state, minutes_left())
      save()


def expected(piece: Piece, part: Part, state: State) -> float:
  """The minutes of a piece: the median of its part's, or what it says."""
  names = [other.name for other in part.pieces]
  known = [state.finished[name] for name in names if name in state.finished]
  return statistics.median(known) if known else piece.minutes


def _do(piece: Piece, state: State, left: float) -> None:
  """Whatever ends it becomes a line."""
  name, begin = piece.name, time.monotonic()
  log(f'{name}: {left:.1f} minutes are left')
  try:
    if not piece.run(60 * left):
      state.left_out[name] = f'not finished: {_RESUMES}'
      return
  except subprocess.TimeoutExpired:
    state.left_out[name] = f'stopped when the time was over: {_RESUMES}'
    return
  except Exception as error:  # The others must be done, bug or not.
    state.failed[name] = first_line(error)
    log(f'{name}: failed: {state.failed[name]}')
  else:
    state.finished[name] = (time.monotonic() - begin) / 60
    log(f'{name}: finished in {state.finished[name]:.1f} minutes')
  del state.left_out[name]
