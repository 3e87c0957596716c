"""What a compiled program moves between memory and chip, by its text.

Every instruction reads its operands and writes its result, except that a slice
reads what it takes, an update in place writes what it puts in, and arrays that
the compiler keeps in the chip's own memory count nothing. The body of a loop
counts as often as the loop runs.
"""

import collections
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fusion_jax.tools.aot.hlo_text import (
  HloArray,
  Instruction,
  computations,
  executions,
  instruction,
)

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

_CYCLES = re.compile(r'"estimated_cycles":"(\d{1,12})"')

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


class Traffic(NamedTuple):
  """Bytes of one instruction.

  Attributes:
    instruction: The instruction.
    read: Bytes that it reads each time.
    written: Bytes that it writes each time.
    times: Number of times that it is done.
    cycles: Cycles of each time, as estimated by the compiler for TPUs; else 0.
    origin: Where JAX says that it comes from; for a copy that the compiler
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
    """The bytes of all times."""
    return self.times * (self.read + self.written)

  @property
  def part(self) -> str:
    """The part of the step that it belongs to, one of `PARTS`."""
    if self.instruction.opcode.startswith(_EXCHANGES):
      return 'exchanges'
    for name, pattern in _PARTS:
      if pattern.search(self.origin):
        return name
    return OTHER


def by_part(found: Sequence[Traffic]) -> dict[str, int]:
  """Sum the bytes of each part of a step, in the order of `PARTS`."""
  sums: dict[str, int] = collections.Counter()
  for one in found:
    sums[one.part] += one.moved
  return {part: sums[part] for part in PARTS if sums[part]}


def total_cycles(found: Sequence[Traffic]) -> int:
  """Sum the cycles of all instructions, done one after the other."""
  return sum(one.times * one.cycles for one in found)


def traffic(text: str, trips: int = 1) -> list[Traffic]:
  """Find the bytes that each instruction of a compiled program moves."""
  lines = computations(text)
  times = executions(lines, trips)
  bodies = {
    name: [one for line in own if (one := instruction(line))]
    for name, own in lines.items()
  }
  return [
    found
    for name in _run(bodies)
    if times(name)
    for found in _computation(bodies[name], bodies, times(name))
    if found.read or found.written or found.cycles
  ]


def _run(bodies: Mapping[str, list[Instruction]]) -> Iterator[str]:
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
  body: list[Instruction],
  bodies: Mapping[str, list[Instruction]],
  times: int,
) -> Iterator[Traffic]:
  results = {one.name: one.results for one in body}
  origins = _origins(body)
  for one in body:
    if one.opcode in _FREE or one.opcode in _CONTROL:
      continue
    inside = bodies[one.called[0]] if _is_fused(one, bodies) else []
    if inside:
      read, written = _fused(one, inside, results)
    else:
      read, written = _alone(one, results)
    yield Traffic(one, read, written, times, _cycles(one), origins[one.name])


def _cycles(one: Instruction) -> int:
  match = _CYCLES.search(one.line)
  return int(match[1]) if match else 0


def _origins(body: list[Instruction]) -> dict[str, str]:
  """Return the origin of each instruction, or that of its first reader."""
  origins: dict[str, str] = {}
  from_readers: dict[str, str] = {}
  for one in reversed(body):
    origins[one.name] = one.origin or from_readers.get(one.name, '')
    for name in one.operands:
      from_readers[name] = origins[one.name] or from_readers.get(name, '')
  return origins


def _is_fused(
  one: Instruction, bodies: Mapping[str, list[Instruction]]
) -> bool:
  """Return whether a called computation shows what the operands are for."""
  fused = one.opcode in ('fusion', 'async-start')
  return fused and bool(one.called) and one.called[0] in bodies


def _alone(
  one: Instruction, results: Mapping[str, tuple[HloArray, ...]]
) -> tuple[int, int]:
  operands = [_bytes(results.get(name, ())) for name in one.operands]
  if one.opcode == 'slice-start':  # Its end says how much.
    return 0, 0
  if one.opcode == 'slice-done':
    return sum(each.padded for each in one.results), _bytes(one.results)
  if one.opcode.endswith('-start'):
    return sum(operands), 0
  if one.opcode.endswith('-done'):
    return 0, _bytes(one.results)
  if one.opcode in _SLICES:
    size = _bytes(one.results)
    return min(size, operands[0]) + sum(operands[1:]), size
  if one.opcode in _UPDATES:
    size = operands[_UPDATES[one.opcode]]
    again = size if one.opcode == 'scatter' else 0
    return sum(operands[1:]) + again, size
  if one.opcode == 'custom-call' and 'AllocateBuffer' in one.line:
    return 0, 0
  return sum(operands), _bytes(one.results)


def _fused(
  one: Instruction,
  inside: list[Instruction],
  results: Mapping[str, tuple[HloArray, ...]],
) -> tuple[int, int]:
  """Return the bytes of a fusion, by what it does with its operands."""
  users: dict[str, list[Instruction]] = collections.defaultdict(list)
  for each in inside:
    for name in each.operands:
      users[name].append(each)
  parameters = {
    int(match[1]): each
    for each in inside
    if (match := re.search(r' parameter\((\d+)\)', each.line))
  }
  read = sum(
    min(
      _bytes(results.get(name, ())),
      _used(parameters[number].name, users, _on_chip(results.get(name, ()))),
    )
    for number, name in enumerate(one.operands)
    if number in parameters
  )
  if one.opcode == 'async-start':
    return read, 0
  named = {each.name: each for each in inside}
  (root,) = (each for each in inside if each.root)
  roots = (
    [named[x] for x in root.operands] if root.opcode == 'tuple' else [root]
  )
  written = 0
  for each, result in zip(roots, one.results, strict=False):
    size, again = _put(each, named, result)
    written += size
    read += again
  return read, written


def _used(
  name: str, users: Mapping[str, list[Instruction]], on_chip: bool
) -> int:
  """Return the bytes that are read of a parameter of a fusion."""
  if on_chip:
    return 0
  total = 0
  for user in users[name]:
    if user.opcode == 'bitcast':
      total += _used(user.name, users, on_chip)
    elif user.opcode in _SLICES and user.operands[0] == name:
      total += sum(each.padded for each in user.results)
    elif user.opcode in _UPDATES and user.operands[0] == name:
      continue
    else:
      return 2**62
  return total


def _put(
  root: Instruction, named: Mapping[str, Instruction], result: HloArray
) -> tuple[int, int]:
  """Return the bytes that a fusion writes, and reads for it, as one result."""
  if result.space:
    return 0, 0
  while root.opcode == 'bitcast':
    root = named[root.operands[0]]
  if root.opcode not in _UPDATES:
    return result.padded, 0
  update = named[root.operands[_UPDATES[root.opcode]]]
  size = min(result.padded, sum(each.padded for each in update.results))
  return size, size if root.opcode == 'scatter' else 0


def _on_chip(results: Sequence[HloArray]) -> bool:
  """Return whether all arrays are in the chip's own memory."""
  return bool(results) and all(each.space for each in results)


def _bytes(results: Sequence[HloArray]) -> int:
  return sum(each.padded for each in results if not each.space)
