"""What a compiled program moves between memory and chip, by its text.

Every instruction reads its operands and writes its result, except that a slice
reads what it takes, an update in place writes what it puts in, and arrays that
the compiler keeps in the chip's own memory count nothing. The body of a loop
counts as often as the loop runs.
"""

import collections
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fusion_jax.tools.aot.counts import (
  called,
  computations,
  element_bits,
  executions,
  numbers,
)

_INSTRUCTION = re.compile(
  r'^\s+(?P<root>ROOT )?%?(?P<name>[\w.-]+) = (?P<result>.*?) '
  r'(?P<opcode>[a-z][\w-]*)\((?P<rest>.*)$'
)
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?')
_TILE = re.compile(r':T\(([\d,]+)\)')
_SPACE = re.compile(r'S\((\d+)\)')
_PARAMETER = re.compile(r' parameter\((\d+)\)')
_NAME = re.compile(r'op_name="([^"]*)"')
_CYCLES = re.compile(r'"estimated_cycles":"(\d{1,12})"')

_FREE = frozenset((
  *('parameter', 'constant', 'tuple', 'get-tuple-element', 'bitcast'),
  *('after-all', 'opt-barrier', 'partition-id', 'replica-id', 'domain'),
))  # fmt: skip
_CONTROL = frozenset(('while', 'conditional', 'call'))
_SLICES = frozenset(('dynamic-slice', 'slice', 'gather'))
_UPDATES = {'dynamic-update-slice': 1, 'scatter': 2}
_EXCHANGES = (
  *('all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all'),
  *('collective-permute', 'send', 'recv'),
)

# Parts of a step, by the first pattern that the origin of an instruction has.
_PARTS = (
  ('optimizer', re.compile(r'/optimizer/')),
  ('loss', re.compile(r'[/(]loss[/)]')),
  (
    'fusion',
    re.compile(r'/(?:read_out|connection|input_norms|prediction|opening)\b'),
  ),
  ('norms and residuals', re.compile(r'_residual\b|norm/')),
  ('attention', re.compile(r'/(?:self|cross)_attention\b')),
  ('feed-forward', re.compile(r'/feed_forward\b')),
  ('embedding', re.compile(r'_embed|sinusoids')),
)
OTHER = 'other'
PARTS = (*(name for name, _ in _PARTS), 'exchanges', OTHER)


class HloArray(NamedTuple):
  """Bytes in whole tiles; `on_chip`: not in the memory that is counted."""

  padded: int
  on_chip: bool


Results = Sequence[HloArray]


class Instruction(NamedTuple):
  """A line of a computation, which is the result of it if it is `root`."""

  name: str
  opcode: str
  results: tuple[HloArray, ...]
  operands: tuple[str, ...]
  called: tuple[str, ...]
  root: bool
  line: str


Bodies = Mapping[str, Sequence[Instruction]]


class Traffic(NamedTuple):
  """Bytes that an instruction reads and writes each time.

  `cycles` are those of each time as the compiler estimates them for TPUs, else
  0. `origin` is where JAX says that it comes from; for a copy that the compiler
  added, where its first reader comes from.
  """

  instruction: Instruction
  read: int
  written: int
  times: int
  cycles: int
  origin: str

  @property
  def moved(self) -> int:
    return self.times * (self.read + self.written)

  @property
  def part(self) -> str:
    """The part of the step that it belongs to, one of `PARTS`."""
    if self.instruction.opcode.startswith(_EXCHANGES):
      return 'exchanges'
    parts = (name for name, pattern in _PARTS if pattern.search(self.origin))
    return next(parts, OTHER)


def by_part(rows: Sequence[Traffic]) -> dict[str, int]:
  """Sum the bytes of each part of a step, in the order of `PARTS`."""
  sums: dict[str, int] = collections.Counter()
  for row in rows:
    sums[row.part] += row.moved
  return {part: sums[part] for part in PARTS if sums[part]}


def traffic(text: str, trips: int = 1) -> list[Traffic]:
  """Find the bytes that each instruction of a compiled program moves."""
  lines = computations(text)
  times = executions(lines, trips)
  bodies = {
    name: [one for line in body if (one := instruction(line))]
    for name, body in lines.items()
  }
  return [
    row
    for name in _run(bodies)
    if times(name)
    for row in _computation(bodies[name], bodies, times(name))
    if row.read or row.written or row.cycles
  ]


def instruction(line: str) -> Instruction | None:
  match = _INSTRUCTION.match(line)
  if match is None:
    return None
  return Instruction(
    match['name'],
    match['opcode'],
    arrays(match['result']),
    tuple(re.findall(r'%([\w.-]+)', _operands(match['rest']))),
    called(line),
    bool(match['root']),
    line,
  )


def origin(line: str) -> str:
  """Return where JAX says that a line comes from, or ''."""
  return match[1] if (match := _NAME.search(line)) else ''


def _operands(rest: str) -> str:
  depth = 1
  for place, letter in enumerate(rest):
    depth += (letter == '(') - (letter == ')')
    if depth == 0:
      return rest[:place]
  return rest


def arrays(result: str) -> tuple[HloArray, ...]:
  """Read the arrays of a result, for example 'f32[8,128]{1,0:T(8,128)}'."""
  return tuple(_array(*parts) for parts in _ARRAY.findall(result))


def _array(dtype: str, shape: str, layout: str) -> HloArray:
  sizes = list(numbers(shape))
  # Axes from the one that changes first, and what each is padded to.
  order = numbers(layout.partition(':')[0]) or range(len(sizes))[::-1]
  tile = numbers(match[1]) if (match := _TILE.search(layout)) else ()
  for axis, multiple in zip(order, reversed(tile), strict=False):
    sizes[axis] = math.ceil(sizes[axis] / multiple) * multiple
  space = match[1] if (match := _SPACE.search(layout)) else '0'
  return HloArray(element_bits(dtype) * math.prod(sizes) // 8, space != '0')


def _run(bodies: Bodies) -> Iterator[str]:
  """Yield the computations whose instructions run one by one."""
  waiting, seen = [''], {''}
  while waiting:
    name = waiting.pop()
    yield name
    for one in bodies[name]:
      if one.opcode in _CONTROL:
        new = [name for name in one.called if name not in seen]
        seen.update(new)
        waiting += new


def _computation(
  body: Sequence[Instruction], bodies: Bodies, times: int
) -> Iterator[Traffic]:
  results = {one.name: one.results for one in body}
  origins = _origins(body)
  for one in body:
    if one.opcode in _FREE or one.opcode in _CONTROL:
      continue
    fused = one.opcode in ('fusion', 'async-start') and one.called
    operands = [results.get(name, ()) for name in one.operands]
    if fused and one.called[0] in bodies:
      read, written = _fused(one, bodies[one.called[0]], operands)
    else:
      read, written = _alone(one, [_bytes(arrays) for arrays in operands])
    cycles = int(match[1]) if (match := _CYCLES.search(one.line)) else 0
    yield Traffic(one, read, written, times, cycles, origins[one.name])


def _origins(body: Sequence[Instruction]) -> dict[str, str]:
  """Return the origin of each instruction, or that of its first reader."""
  origins: dict[str, str] = {}
  from_readers: dict[str, str] = {}
  for one in reversed(body):
    origins[one.name] = origin(one.line) or from_readers.get(one.name, '')
    for name in one.operands:
      from_readers[name] = origins[one.name] or from_readers.get(name, '')
  return origins


def _alone(one: Instruction, operands: Sequence[int]) -> tuple[int, int]:
  """Return the bytes that are read and written, given those of operands."""
  size = _bytes(one.results)
  allocates = one.opcode == 'custom-call' and 'AllocateBuffer' in one.line
  if one.opcode == 'slice-start' or allocates:
    return 0, 0  # The end of the slice says how much.
  if one.opcode == 'slice-done':
    return sum(array.padded for array in one.results), size
  if one.opcode.endswith('-start'):
    return sum(operands), 0
  if one.opcode.endswith('-done'):
    return 0, size
  if one.opcode in _SLICES:
    return min(size, operands[0]) + sum(operands[1:]), size
  if one.opcode in _UPDATES:
    size = operands[_UPDATES[one.opcode]]
    again = size if one.opcode == 'scatter' else 0
    return sum(operands[1:]) + again, size
  return sum(operands), size


def _fused(
  one: Instruction, inside: Sequence[Instruction], operands: Sequence[Results]
) -> tuple[int, int]:
  """Return the bytes of a fusion, by what it does with its operands."""
  users: dict[str, list[Instruction]] = collections.defaultdict(list)
  for user in inside:
    for name in user.operands:
      users[name].append(user)
  read = 0
  for parameter in inside:
    if match := _PARAMETER.search(parameter.line):
      size = _bytes(operands[int(match[1])])
      read += min(size, _used(parameter.name, users)) if size else 0
  if one.opcode == 'async-start':
    return read, 0
  named = {user.name: user for user in inside}
  (root,) = (user for user in inside if user.root)
  roots = (
    [named[x] for x in root.operands] if root.opcode == 'tuple' else [root]
  )
  written = 0
  for part, result in zip(roots, one.results, strict=False):
    size, again = _put(part, named, result)
    written += size
    read += again
  return read, written


def _used(name: str, users: Mapping[str, Sequence[Instruction]]) -> float:
  """Return the most bytes that are read of a parameter of a fusion."""
  total: float = 0
  for user in users[name]:
    if user.opcode == 'bitcast':
      total += _used(user.name, users)
    elif user.opcode in _SLICES and user.operands[0] == name:
      total += sum(array.padded for array in user.results)
    elif user.opcode not in _UPDATES or user.operands[0] != name:
      return math.inf
  return total


def _put(
  root: Instruction, named: Mapping[str, Instruction], result: HloArray
) -> tuple[int, int]:
  """Return the bytes that a fusion writes, and reads for it, as one result."""
  if result.on_chip:
    return 0, 0
  while root.opcode == 'bitcast':
    root = named[root.operands[0]]
  if root.opcode not in _UPDATES:
    return result.padded, 0
  update = named[root.operands[_UPDATES[root.opcode]]]
  size = min(result.padded, sum(array.padded for array in update.results))
  return size, size if root.opcode == 'scatter' else 0


def _bytes(results: Results) -> int:
  return sum(array.padded for array in results if not array.on_chip)
