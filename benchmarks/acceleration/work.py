"""Pieces of work in a budget of minutes: what is finished is not repeated."""

import contextlib
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.common import log
from fusion_jax.errors import first_line

_RESUMES = 'the same command resumes'


class Piece(NamedTuple):
  """The smallest piece of work that is done by itself.

  name: begins with that of its part.
  minutes: that it probably takes.
  run: does it in at most so many seconds; whether it is finished then. What
    it leaves in files it finds again.
  missing: what it needs and has not; '': nothing.
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
  may still fit.

  Args:
    parts: in the order of their importance.
    state: is kept up to date.
    minutes_left: of the budget.
    save: called whenever the state has changed.
  """
  for part in parts.values():
    for piece in part.pieces:
      if piece.name in state.finished:
        continue
      reason = piece.missing or _too_long(
        expected(piece, part, state), minutes_left()
      )
      if reason:
        state.left_out[piece.name] = reason
      else:
        state.left_out[piece.name] = f'interrupted: {_RESUMES}'
        save()
        _do(piece, state, minutes_left())
      save()


def expected(piece: Piece, part: Part, state: State) -> float:
  """The minutes of a piece: the median of its part's, or what it says."""
  known = [
    state.finished[other.name]
    for other in part.pieces
    if other.name in state.finished
  ]
  return statistics.median(known) if known else piece.minutes


def _too_long(minutes: float, left: float) -> str:
  if minutes <= left:
    return ''
  return (
    f'about {minutes:.1f} minutes, of which {max(left, 0):.1f} are left: '
    f'{_RESUMES}'
  )


def _do(piece: Piece, state: State, left: float) -> None:
  log(f'{piece.name}: {left:.1f} minutes are left')
  begin = time.monotonic()
  with _recorded(piece.name, state):
    finished = piece.run(60 * left)
    spent = (time.monotonic() - begin) / 60
    if finished:
      del state.left_out[piece.name]
      state.finished[piece.name] = spent
      log(f'{piece.name}: finished in {spent:.1f} minutes')
    else:
      state.left_out[piece.name] = f'not finished: {_RESUMES}'


@contextlib.contextmanager
def _recorded(name: str, state: State) -> Iterator[None]:
  """Turns whatever ends a piece into a line."""
  try:
    yield
  except subprocess.TimeoutExpired:
    state.left_out[name] = f'stopped when the time was over: {_RESUMES}'
  except Exception as error:  # The others must be done, bug or not.
    del state.left_out[name]
    state.failed[name] = first_line(error)
    log(f'{name}: failed: {state.failed[name]}')
