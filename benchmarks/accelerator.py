r"""What a CPU cannot measure, on one GPU or TPU, in a budget of minutes.

    python -m benchmarks.accelerator --output=DIR [--data=DIR] [--minutes=40] \
        [--parts=speed,search] [--plan]
    python -m benchmarks.accelerator --output=DIR --size=tiny [--data=DIR]

It may be killed at any moment: every finished piece is in --output, and the
same command does the others, and tries again those that failed. --size=tiny
takes two minutes on a CPU and only shows that the program works.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks.acceleration import overhead, recipes, search, speed
from benchmarks.acceleration.place import Place
from benchmarks.acceleration.work import Part, State, carry_out, expected
from benchmarks.common import circumstances, make_parser, table, write_results
from benchmarks.comparison.work import locked
from fusion_jax.config.flags import parse_arguments
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.files import write_whole
from fusion_jax.startup import one_line_errors

# In the order of their importance.
PARTS: Mapping[str, Callable[[Place], Part]] = {
  'speed': speed.part,
  'schemes': overhead.part,
  'search': search.part,
  'multi30k': recipes.multi30k,
  'comparison': recipes.comparison,
}


_DEVICE = ('kind', 'devices', 'memory_mb', 'driver', 'runtime')


@one_line_errors
def main(argv: list[str]) -> None:
  begin = time.monotonic()
  arguments = _parse(argv)
  chosen = _chosen(arguments.parts)
  # Only the programs that this one starts may see the accelerator.
  jax.config.update('jax_platforms', 'cpu')
  with locked(arguments.output) as lock:
    place = _place(arguments, lock)
    parts = {name: make(place) for name, make in PARTS.items()}
    results = _resumed(place)
    # What failed or was left out is tried again.
    state = State(results.get('finished', {}), {}, {})
    own = {name: parts[name] for name in chosen}
    if arguments.plan:
      print(_plan(own, state))
      return
    others = [name for name in parts if name not in own]
    state.left_out.update(dict.fromkeys(others, 'not in --parts'))

    def save() -> None:
      found = {name: part.read() for name, part in parts.items()}
      results.update(state._asdict() | {'results': found})
      write_results(place.folder / 'accelerator.json', results)
      page = _report(results, parts).encode()
      write_whole(place.folder / 'accelerator.md', page)

    def minutes_left() -> float:
      return arguments.minutes - (time.monotonic() - begin) / 60

    carry_out(own, state, minutes_left, save)
    save()
    print(_report(results, parts), end='')
  if state.failed:
    raise CheckFailed(
      f'{len(state.failed)} pieces, which the same command tries again: '
      f'{"; ".join(state.failed)}'
    )


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = make_parser(__doc__)
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


def _resumed(place: Place) -> dict[str, Any]:
  """The results that the folder has, or empty ones."""
  path, device = place.folder / 'accelerator.json', dict(place.device)
  settings = {'size': 'tiny' if place.tiny else 'full', 'device': device}
  if not path.exists():
    return circumstances() | settings
  results = json.loads(path.read_text())
  before = results['size'], results['device']['kind']
  if before != (settings['size'], device['kind']):
    raise InputError(
      f'--output: {path} has results of {before[1]}, size {before[0]}; give '
      'another folder'
    )
  return results


def _plan(parts: Mapping[str, Part], state: State) -> str:
  """The pieces, with minutes or the reason why they are left out."""
  rows, total = [], 0.0
  for part in parts.values():
    for piece in part.pieces:
      if piece.name in state.finished:
        rows.append((piece.name, 'finished'))
      elif piece.missing:
        rows.append((piece.name, f'left out: {piece.missing}'))
      else:
        minutes = expected(piece, part, state)
        rows.append((piece.name, f'{minutes:.1f}'))
        total += minutes
  return table(('piece', 'minutes'), [*rows, ('all', f'{total:.1f}')])


def _report(results: Mapping[str, Any], parts: Mapping[str, Part]) -> str:
  """A Markdown page of what has been measured, and what has not."""
  sections = ['# Measured on an accelerator']
  if results['size'] == 'tiny':
    sections.append('tiny sizes: no result')
  own = {key: results['device'][key] for key in _DEVICE} | {
    key: value
    for key, value in results.items()
    if isinstance(value, str | int) and key != 'size'
  }
  lines = (f'{key}: {" ".join(str(own[key]).split())}' for key in own)
  sections.append(_block('\n'.join(lines)))
  for name, part in parts.items():
    found = results['results'].get(name)
    text = _block(part.table(found)) if found else 'Nothing yet.'
    sections.append(f'## {name}: {part.does}\n\n{text}')
  for title, key in (('Failed', 'failed'), ('Left out', 'left_out')):
    reasons = [f'- {name}: {why}' for name, why in results[key].items()]
    sections.append('\n'.join((f'## {title}', '', *(reasons or ['Nothing.']))))
  return '\n\n'.join(sections) + '\n'


def _block(text: str) -> str:
  """Tables that are no Markdown yet are shown as they are."""
  return text.strip() if '| --- |' in text else f'```\n{text}\n```'


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
