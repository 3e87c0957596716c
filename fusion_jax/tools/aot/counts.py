"""Counts of programs: products of a traced one, exchanges of a compiled one."""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

# What an equation without a body counts.
_Leaf: TypeAlias = Callable[[JaxprEqn], int]


def product_gflop(program: ClosedJaxpr, trips: int = 1) -> float:
  """Count the needed matrix products in 10^9 floating-point operations.

  A product takes 2mnk operations. Products whose results nothing reads are not
  counted, because XLA drops them. The body of a scan counts as often as it
  runs, that of another loop `trips` times, that of a shard_map once per shard;
  of the branches of a conditional only the largest counts.
  """
  return 2 * _count(_needed(program), trips, _product) / 1e9


def multiplications(program: ClosedJaxpr) -> int:
  """Count the needed multiplications of floating-point numbers.

  They are those of matrix products, mnk, and of arrays with arrays, a square
  among them; what divides, takes roots or exponentials is not counted.
  """
  return _count(_needed(program), 0, _multiplications)


def _needed(program: ClosedJaxpr) -> Jaxpr:
  jaxpr = program.jaxpr
  return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def _count(jaxpr: Jaxpr, trips: int, leaf: _Leaf) -> int:
  return sum(_count_one(equation, trips, leaf) for equation in jaxpr.eqns)


def _count_one(equation: JaxprEqn, trips: int, leaf: _Leaf) -> int:
  name, params = equation.primitive.name, equation.params
  inner = [_count(jaxpr, trips, leaf) for jaxpr in jaxprs_in_params(params)]
  if not inner:
    return leaf(equation)
  if name == 'cond':
    return max(inner)
  if name == 'shard_map':
    return _shards(params) * sum(inner)
  times = {'scan': params.get('length', 1), 'while': trips}
  return times.get(name, 1) * sum(inner)


def _shards(params: dict[str, Any]) -> int:
  """Return how many shards of a shard_map make up the whole."""
  sizes = params['mesh'].shape
  # jax 0.10 uses newly_manual_axes, other versions manual_axes.
  (axes,) = (params[x] for x in params if x.endswith('manual_axes'))
  return math.prod(sizes[axis] for axis in axes)


def _multiplications(equation: JaxprEqn) -> int:
  result: Any = equation.outvars[0].aval
  by_element = equation.primitive.name in ('mul', 'square')
  if by_element and jnp.issubdtype(result.dtype, jnp.floating):
    return result.size
  return _product(equation)


def _product(equation: JaxprEqn) -> int:
  """Return the elements of a product times the terms of each sum."""
  if equation.primitive.name != 'dot_general':
    return 0
  left: Any = equation.invars[0].aval
  result: Any = equation.outvars[0].aval
  (contracted, _), _ = equation.params['dimension_numbers']
  return result.size * math.prod(left.shape[axis] for axis in contracted)


# The lines of each computation of a compiled program, by its name.
Computations = Mapping[str, Sequence[str]]

_HEADER = re.compile(r'^(ENTRY )?%?([\w.-]+) \(.*\{$')
_CALLS = re.compile(
  r'\b(?:calls|to_apply|body|condition|true_computation|false_computation)='
  r'%?([\w.-]+)|\b(?:branch_computations|called_computations)=\{([^}]*)\}'
)
_TRIPS = re.compile(r'known_trip_count"?[=:]\{"?n"?[=:]"?(\d+)')
_COUNTER = re.compile(r's32\[\]\S* constant\((\d+)\)')


def computations(text: str) -> dict[str, list[str]]:
  """Return the lines of each computation by its name; '' is the entry."""
  bodies: dict[str, list[str]] = {}
  lines: list[str] = []
  for line in text.splitlines():
    if match := _HEADER.match(line):
      lines = bodies.setdefault('' if match[1] else match[2], [])
    elif not line.startswith('}'):
      lines.append(line)
  return bodies


def element_bits(dtype: str) -> int:
  """Return the bits of an element: 16 for 'bf16', 8 for 'pred'."""
  match = re.search(r'\d+', dtype)
  return int(match[0]) if match else 8


def numbers(text: str) -> tuple[int, ...]:
  """Return the numbers of a text such as '2,3' or '0:3', which has four."""
  found: list[int] = []
  for part in filter(None, text.split(',')):
    first, _, last = part.partition(':')
    found += range(int(first), int(last or first) + 1)
  return tuple(found)


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


_OPERATION = re.compile(
  r'^\s+(?:ROOT )?%?[\w.-]+ = (?P<result>.*?) (?P<kind>all-reduce|all-gather|'
  r'reduce-scatter|all-to-all|collective-permute)(?P<start>-start)?\('
)
# How the TPU compiler passes an array to the network between slices.
_BETWEEN = re.compile(
  r'^\s+(?:ROOT )?%?[\w.-]+ = \((?P<result>\w+\[[\d,]*\]).* send\('
  r'.*_xla_megascale_target="\{(?P<slices>[\d,:]+)\}'
  r'.*_xla_megascale_transfer_type="(?P<kind>\w+)"'
)
_CHAIN = re.compile(r'channel_id=(\d+).*chain_id="(\d+)"')
_LISTED = re.compile(r'(?:replica_groups|source_target_pairs)=\{\{([\d,]+)\}')
_IOTA = re.compile(
  r'replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?'
)
_AXES = re.compile(r'replica_groups=mesh\[([^\]]*)\] ?\{([^}]*)\}')
_MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
_PART = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\]')
_DEVICES = re.compile(r'num_partitions=(\d+)')


@dataclasses.dataclass(frozen=True)
class Collective:
  """One exchange between devices, or between slices, as its kind says then."""

  kind: str  # 'all-reduce', 'all-reduce between slices' and so on.
  size: int  # Bytes of the whole array that is summed, cut or put together.
  # Of the first group, by place in the mesh, the last axis changing first.
  members: tuple[int, ...]
  times: int  # In a run of the program.

  @property
  def sent(self) -> float:
    """The bytes that a device sends in a ring: (n - 1) / n of the array.

    An all-reduce, which is a reduce-scatter and an all-gather, sends twice
    that; a permutation sends the whole array.
    """
    if self.kind == 'collective-permute':
      return float(self.times * self.size)
    passes = 2 if self.kind.startswith('all-reduce') else 1
    share = (len(self.members) - 1) / len(self.members)
    return passes * share * self.size * self.times


@dataclasses.dataclass(frozen=True)
class Total:
  """All exchanges of a kind: how often, and the bytes that a device sends."""

  count: int
  sent: float


def totals(exchanges: Sequence[Collective]) -> dict[str, Total]:
  """Sum counts and bytes by kind, in alphabetical order."""
  kinds = collections.defaultdict(list)
  for exchange in exchanges:
    kinds[exchange.kind].append(exchange)
  return {
    kind: Total(sum(x.times for x in of_kind), sum(x.sent for x in of_kind))
    for kind, of_kind in sorted(kinds.items())
  }


def collectives(text: str, trips: int = 1) -> list[Collective]:
  """Find the exchanges of a compiled program.

  An exchange inside a loop counts as often as the loop runs; those of all
  branches of a conditional count. An exchange that the TPU compiler has cut
  into a start, steps between products, and an end counts once.
  """
  bodies = computations(text)
  times = executions(bodies, trips)
  devices = int(match[1]) if (match := _DEVICES.search(text)) else 1
  exchanges: dict[object, Collective] = {}
  for name, lines in bodies.items():
    for number, line in enumerate(lines):
      if exchange := _exchange(line, devices, times(name)):
        chain = _CHAIN.search(line)
        key = chain.groups() if chain else (name, number)
        exchanges.setdefault(key, exchange)
  return [x for x in exchanges.values() if len(x.members) > 1 and x.times]


def _exchange(line: str, devices: int, times: int) -> Collective | None:
  """Read the exchange of a line, if it is one."""
  if match := _BETWEEN.match(line):
    kind = match['kind'].lower().replace('_', '-') + ' between slices'
    slices = numbers(match['slices'])
    return Collective(kind, _bytes(match['result']), slices, times)
  if match := _OPERATION.match(line):
    members = _members(line, devices)
    size = _whole(match, len(members))
    return Collective(match['kind'], size, members, times)
  return None


def _whole(operation: re.Match[str], group: int) -> int:
  """Return the bytes of the whole array from the result of the line."""
  kind, started = operation['kind'], bool(operation['start'])
  permuted = kind == 'collective-permute'
  size = _bytes(operation['result'], scalars=not permuted)
  if kind == 'reduce-scatter':
    return size * group
  if started and kind == 'all-gather':  # The result includes the operand.
    return size * group // (group + 1)
  return size // 2 if started and permuted else size


def _bytes(result: str, scalars: bool = True) -> int:
  return sum(
    element_bits(dtype) * math.prod(numbers(sizes)) // 8
    for dtype, sizes in _ARRAY.findall(result)
    if sizes or scalars
  )


def _members(line: str, devices: int) -> tuple[int, ...]:
  """Return the first group of a line; for a permutation, the first pair."""
  if match := _LISTED.search(line):
    return numbers(match[1])
  if match := _IOTA.search(line):
    size, shape, order = match.groups()
    # The first of arange(...).reshape(shape).transpose(order).
    ids = np.arange(math.prod(numbers(shape))).reshape(numbers(shape))
    turned = ids.transpose(numbers(order) if order else None)
    return tuple(turned.reshape(-1)[: int(size)].tolist())
  if match := _AXES.search(line):
    return _along(*match.groups())
  return tuple(range(devices))


def _along(mesh: str, axes: str) -> tuple[int, ...]:
  """Return the devices along mesh axes, or parts of them, from the first on."""
  sizes = {name: int(size) for name, size in _MESH_AXIS.findall(mesh)}
  strides, stride = {}, 1
  for name in reversed(sizes):
    strides[name], stride = stride, stride * sizes[name]
  members = [0]
  for name, before, part in _PART.findall(axes):
    size = int(part or sizes[name])
    step = strides[name] * sizes[name] // (int(before or 1) * size)
    members = [first + k * step for first in members for k in range(size)]
  return tuple(members)
