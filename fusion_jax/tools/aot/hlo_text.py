"""The text of a compiled program: its computations, and how often they run."""

import collections
import functools
import re
from collections.abc import Callable, Mapping, Sequence

Computations = Mapping[str, Sequence[str]]

_HEADER = re.compile(r'^(ENTRY )?%?([\w.-]+) \(.*\{$')
_CALLS = re.compile(
  r'\b(?:calls|to_apply|body|condition|true_computation|false_computation)='
  r'%?([\w.-]+)|\b(?:branch_computations|called_computations)=\{([^}]*)\}'
)
_TRIPS = re.compile(r'known_trip_count"?[=:]\{"?n"?[=:]"?(\d+)')
_COUNTER = re.compile(r's32\[\]\S* constant\((\d+)\)')
_NAME = re.compile(r'op_name="([^"]*)"')


def computations(text: str) -> dict[str, list[str]]:
  """Return the lines of each computation by its name; '' is the entry."""
  bodies: dict[str, list[str]] = {}
  name: str | None = None
  lines: list[str] = []
  for line in text.splitlines():
    if match := _HEADER.match(line):
      name, lines = '' if match[1] else match[2], []
    elif line.startswith('}') and name is not None:
      bodies[name] = lines
      name = None
    else:
      lines.append(line)
  return bodies


def element_bits(dtype: str) -> int:
  """Return the bits of an element: 16 for 'bf16', 8 for 'pred'."""
  match = re.search(r'\d+', dtype)
  return int(match[0]) if match else 8


def numbers(text: str) -> tuple[int, ...]:
  """Return the numbers of a text such as '2,3'."""
  return tuple(int(part) for part in text.split(',') if part)


def origin(line: str) -> str:
  """Return where JAX says that a line comes from, or ''."""
  return match[1] if (match := _NAME.search(line)) else ''


def called(line: str) -> tuple[str, ...]:
  """Return the names of the computations that a line calls."""
  return tuple(
    name
    for one, several in _CALLS.findall(line)
    for name in ([one] if one else re.findall(r'[\w.-]+', several))
  )


def executions(bodies: Computations, trips: int) -> Callable[[str], int]:
  """Return a function from a computation's name to how often it is done."""
  callers = collections.defaultdict(list)
  for caller, lines in bodies.items():
    for line in lines:
      for name in called(line):
        runs = _trips(line, bodies, trips) if ' while(' in line else 1
        callers[name].append((caller, runs))

  @functools.cache
  def times(name: str) -> int:
    if not name:
      return 1
    return sum(times(caller) * runs for caller, runs in callers[name])

  return times


def _trips(loop: str, bodies: Computations, unknown: int) -> int:
  """Return a loop's trip count from XLA or its counter, or `unknown`."""
  if known := _TRIPS.search(loop):
    return int(known[1])
  condition = re.search(r'condition=%?([\w.-]+)', loop)
  lines = bodies.get(condition[1], []) if condition else []
  bounds = _COUNTER.findall('\n'.join(lines))
  counted = any('ROOT' in x and 'direction=LT' in x for x in lines)
  return int(bounds[0]) if counted and len(bounds) == 1 else unknown
