r"""What a CPU cannot measure, on one GPU or TPU, in a budget of minutes.

    python -m benchmarks.accelerator --output=DIR [--data=DIR] [--minutes=40] \
        [--parts=speed,search] [--plan]
    python -m benchmarks.accelerator --output=DIR --size=tiny [--data=DIR]

The parts are done in the order of their importance, piece by piece; a piece
that would take longer than there is time is left out, and the report says so.
The program may be killed at any moment: every finished piece is in --output,
and the same command resumes with the others. One that fails does not stop the
others; it is reported and makes the exit code 1, and the same command tries it
again. With --size=tiny the parts take two minutes on a CPU and measure
nothing: they only show that the program works.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks.acceleration import (
  comparison,
  multi30k,
  overhead,
  search,
  speed,
)
from benchmarks.acceleration.place import Place
from benchmarks.acceleration.report import plan, report
from benchmarks.acceleration.work import Part, State, carry_out, expected
from benchmarks.common import circumstances, write_results
from benchmarks.comparison.work import locked
from fusion_jax.config.flags import parse_arguments
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.startup import one_line_errors

# In the order of their importance.
PARTS: Mapping[str, Callable[[Place], Part]] = {
  'speed': speed.part,
  'schemes': overhead.part,
  'search': search.part,
  'multi30k': multi30k.part,
  'comparison': comparison.part,
}


class Session:
  """The results of a folder, and the parts that add to them.

  Attributes:
    state: what became of the pieces.
  """

  def __init__(self, place: Place, parts: Mapping[str, Part]):
    """Reads what there is.

    Args:
      place: where the parts work.
      parts: all of them.

    Raises:
      InputError: the folder has results of another device or size.
    """
    self._place, self._parts = place, parts
    self._path = place.folder / 'accelerator.json'
    settings = {
      'size': 'tiny' if place.tiny else 'full',
      'device': dict(place.device),
    }
    results = circumstances() | settings
    if self._path.exists():
      results = json.loads(self._path.read_text())
    before = results['size'], results['device']['kind']
    if before != (settings['size'], place.device['kind']):
      raise InputError(
        f'--output: {self._path} has results of {before[1]}, size {before[0]}; '
        'give another folder'
      )
    self._results = results
    # What failed or was left out is tried again.
    self.state = State(results.get('finished', {}), {}, {})

  def save(self) -> None:
    """Writes the results and the report."""
    found = {name: part.read() for name, part in self._parts.items()}
    self._results |= self.state._asdict() | {'results': found}
    write_results(self._path, self._results)
    path = self._path.with_suffix('.md')
    temporary = path.with_suffix('.unfinished')
    temporary.write_text(self.report())
    temporary.replace(path)

  def report(self) -> str:
    """The page of what is saved."""
    return report(self._results, self._parts)


@one_line_errors
def main(argv: list[str]) -> None:
  """Does what fits into the budget, then prints the report."""
  begin = time.monotonic()
  arguments = _parse(argv)
  chosen = _chosen(arguments.parts)
  # Only the programs that this one starts may see the accelerator.
  jax.config.update('jax_platforms', 'cpu')
  with locked(arguments.output) as lock:
    place = _place(arguments, lock)
    parts = {name: make(place) for name, make in PARTS.items()}
    session = Session(place, parts)
    own = {name: parts[name] for name in chosen}
    if arguments.plan:
      _print_plan(own, session.state)
      return
    others = [name for name in parts if name not in own]
    session.state.left_out.update(dict.fromkeys(others, 'not in --parts'))

    def minutes_left() -> float:
      return arguments.minutes - (time.monotonic() - begin) / 60

    carry_out(own, session.state, minutes_left, session.save)
    session.save()
    print(session.report(), end='')
  if session.state.failed:
    raise CheckFailed(
      f'{len(session.state.failed)} pieces, which the same command tries '
      f'again: {"; ".join(session.state.failed)}'
    )


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--output', type=Path, required=True, help='a folder for the results')
  add('--data', type=Path, help='the folder of Multi30k')
  add('--minutes', type=float, default=40, help='end after so long')
  add('--size', choices=('full', 'tiny'), default='full')
  add('--parts', default='', help=f'of {",".join(PARTS)}; default: all')
  add('--plan', action='store_true', help='only print the pieces')
  arguments = parse_arguments(argv, parser)
  arguments.output = arguments.output.absolute()
  arguments.data = arguments.data and arguments.data.absolute()
  return arguments


def _chosen(names: str) -> list[str]:
  wanted = names.split(',') if names else list(PARTS)
  for name in wanted:
    if name not in PARTS:
      raise InputError(f'--parts: no {name!r}; there are {", ".join(PARTS)}')
  return [name for name in PARTS if name in wanted]


def _place(arguments: argparse.Namespace, lock: int) -> Place:
  tiny = arguments.size == 'tiny'
  place = Place(arguments.output, arguments.data, tiny, {}, (lock,))
  command = '-m', 'benchmarks.acceleration.device'
  device: dict[str, Any] = json.loads(place.start('device', *command))
  if device['platform'] == 'cpu' and not tiny:
    raise InputError(
      'JAX finds no accelerator, only a CPU; --size=tiny tries the program'
    )
  return place._replace(device=device)


def _print_plan(parts: Mapping[str, Part], state: State) -> None:
  minutes = {
    piece.name: expected(piece, part, state)
    for part in parts.values()
    for piece in part.pieces
    if piece.name not in state.finished
  }
  print(plan(parts, minutes))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
