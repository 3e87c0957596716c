"""The text of a compiled program: its computations, instructions and arrays."""

import collections
import functools
import math
import re
from collections.abc import Callable
from typing import NamedTuple

_HEADER = re.compile(r'^(ENTRY )?%?([\w.-]+) \(.*\{$')
_INSTRUCTION = re.compile(
  r'^\s+(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<result>.*?) '
  r'(?P<opcode>[a-z][\w-]*)\((?P<rest>.*)$'
)
_CALLS = re.compile(
  r'\b(?:calls|to_apply|body|condition|true_computation|false_computation)='
  r'%?([\w.-]+)|\b(?:branch_computations|called_computations)=\{([^}]*)\}'
)
_TRIPS = re.compile(r'known_trip_count"?[=:]\{"?n"?[=:]"?(\d+)')
_COUNTER = re.compile(r's32\[\]\S* constant\((\d+)\)')
_NAME = re.compile(r'op_name="([^"]*)"')
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?')
_TILE = re.compile(r':T\(([\d,]+)\)')
_SPACE = re.compile(r'S\((\d+)\)')
_OPERAND = re.compile(r'%([\w.-]+)')


class HloArray(NamedTuple):
  """An array of a compiled program.

  Attributes:
    bits: Bits of an element.
    sizes: Its shape.
    order: Its axes from the one that changes first; () for the default.
    tile: Multiples that those axes, in the order of the shape, are padded to.
    space: Memory that it is in: 0 for that of the device, others for memory on
      the chip or of the host.
  """

  bits: int
  sizes: tuple[int, ...]
  order: tuple[int, ...]
  tile: tuple[int, ...]
  space: int

  @property
  def size(self) -> int:
    """The bytes of its elements."""
    return self.bits * math.prod(self.sizes) // 8

  @property
  def padded(self) -> int:
    """The bytes that it takes up, in whole tiles."""
    order = self.order or tuple(reversed(range(len(self.sizes))))
    sizes = list(self.sizes)
    for axis, multiple in zip(order, reversed(self.tile), strict=False):
      sizes[axis] = math.ceil(sizes[axis] / multiple) * multiple
    return self.bits * math.prod(sizes) // 8


class Instruction(NamedTuple):
  """One line of a computation.

  Attributes:
    name: Its name.
    opcode: Its operation, for example 'fusion'.
    results: Arrays of its result, which may be a tuple.
    operands: Names of its operands.
    called: Names of the computations that it calls.
    origin: Where JAX says that it comes from: 'jit(step)/encoder/...'.
    root: Whether it is the result of its computation.
    line: The whole line.
  """

  name: str
  opcode: str
  results: tuple[HloArray, ...]
  operands: tuple[str, ...]
  called: tuple[str, ...]
  origin: str
  root: bool
  line: str


def computations(text: str) -> dict[str, list[str]]:
  """Return the lines of each computation by its name; '' is the entry."""
  found: dict[str, list[str]] = {}
  name: str | None = None
  lines: list[str] = []
  for line in text.splitlines():
    if match := _HEADER.match(line):
      name, lines = '' if match[1] else match[2], []
    elif line.startswith('}') and name is not None:
      found[name] = lines
      name = None
    else:
      lines.append(line)
  return found


def instruction(line: str) -> Instruction | None:
  """Read a line; None if it is no instruction."""
  match = _INSTRUCTION.match(line)
  if match is None:
    return None
  return Instruction(
    match['name'],
    match['opcode'],
    arrays(match['result']),
    tuple(_OPERAND.findall(_operands(match['rest']))),
    called(line),
    origin(line),
    bool(match['root']),
    line,
  )


def _operands(rest: str) -> str:
  """Return what stands before the parenthesis that ends the operands."""
  depth = 1
  for place, letter in enumerate(rest):
    depth += (letter == '(') - (letter == ')')
    if depth == 0:
      return rest[:place]
  return rest


def arrays(result: str) -> tuple[HloArray, ...]:
  """Read the arrays of a result, for example 'f32[8,128]{1,0:T(8,128)}'."""
  return tuple(_array(*each) for each in _ARRAY.findall(result))


def _array(dtype: str, sizes: str, layout: str) -> HloArray:
  order, _, _ = layout.partition(':')
  tile = match[1] if (match := _TILE.search(layout)) else ''
  space = match[1] if (match := _SPACE.search(layout)) else '0'
  return HloArray(
    element_bits(dtype), numbers(sizes), numbers(order), numbers(tile),
    int(space),
  )  # fmt: skip


def element_bits(dtype: str) -> int:
  """Return the bits of an element: 16 for 'bf16', 8 for 'pred'."""
  found = re.search(r'\d+', dtype)
  return int(found[0]) if found else 8


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


def executions(
  bodies: dict[str, list[str]], trips: int
) -> Callable[[str], int]:
  """Return a function from a computation's name to how often it is done."""
  callers = collections.defaultdict(list)
  for name, lines in bodies.items():
    for line in lines:
      if not _CALLS.search(line):
        continue
      runs = _trips(line, bodies, trips) if ' while(' in line else 1
      for each in called(line):
        callers[each].append((name, runs))

  @functools.cache
  def times(name: str) -> int:
    if not name:
      return 1
    return sum(times(caller) * runs for caller, runs in callers[name])

  return times


def _trips(loop: str, bodies: dict[str, list[str]], unknown: int) -> int:
  """Return a loop's trip count from XLA or its counter, or `unknown`."""
  if known := _TRIPS.search(loop):
    return int(known[1])
  condition = re.search(r'condition=%?([\w.-]+)', loop)
  lines = bodies.get(condition[1], []) if condition else []
  bounds = _COUNTER.findall('\n'.join(lines))
  counted = any('ROOT' in x and 'direction=LT' in x for x in lines)
  return int(bounds[0]) if counted and len(bounds) == 1 else unknown
