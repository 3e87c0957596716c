"""What a device did in a profile of JAX: its kernels and its idle time."""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fusion_jax.errors import CheckFailed

# Planes and lines of a profile: the kernels of a GPU, else the operations of a
# TPU, else those of a CPU.
_LINES = (('/device:', 'Stream'), ('/device:', 'XLA Ops'), ('/host:', ''))
# Instructions whose time is that of others.
_AROUND = ('while', 'call', 'conditional')
_MOST = 25


class Event(NamedTuple):
  """A kernel that ran, by its instruction ('': unknown); times in ns."""

  name: str
  operation: str
  begin: float
  end: float


def profile(run: Callable[[], None]) -> jax.profiler.ProfileData:
  """Run something, and return its profile."""
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0
  options.enable_hlo_proto = False
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder, profiler_options=options):
      run()
    (path,) = Path(folder).rglob('*.xplane.pb')
    return jax.profiler.ProfileData.from_file(str(path))


def device_events(data: Any) -> list[Event]:
  """Return what a `jax.profiler.ProfileData` says that a device did."""
  lines = [(plane, line) for plane in data.planes for line in plane.lines]
  for of_plane, of_line in _LINES:
    events = [
      Event(event.name, operation, event.start_ns, event.end_ns)
      for plane, line in lines
      if plane.name.startswith(of_plane) and line.name.startswith(of_line)
      for event in line.events
      for operation in [str(dict(event.stats).get('hlo_op', ''))]
      if operation or of_line == 'Stream'
      if not operation.startswith(_AROUND)
    ]
    if events:
      return events
  return []


def kernels(
  events: Iterable[Event], parts: Mapping[str, str], steps: int
) -> dict[str, Any]:
  """The kernels that take most time in some steps, and the share of idle time.

  Streams may overlap. `parts` has the part of the step by instruction.
  """
  spent: dict[tuple[str, str], float] = defaultdict(float)
  calls: Counter[tuple[str, str]] = Counter()
  ordered = sorted(events, key=lambda event: event.begin)
  if not ordered:
    raise CheckFailed('the profile has no kernels')
  first = last = ordered[0].begin
  busy = 0.0
  for event in ordered:
    busy += max(event.end - max(event.begin, last), 0)
    last = max(event.end, last)
    key = event.name, parts.get(event.operation, '')
    spent[key] += event.end - event.begin
    calls[key] += 1
  total = sum(spent.values())
  return {
    'milliseconds': (last - first) / 1e6 / steps,
    'calls': calls.total() / steps,
    'idle': 1 - busy / (last - first),
    'kernels': [
      {
        'name': key[0],
        'part': key[1],
        'calls': calls[key] / steps,
        'microseconds': spent[key] / 1e3 / steps,
        'share': spent[key] / total,
      }
      for key in sorted(spent, key=lambda key: -spent[key])[:_MOST]
    ],
  }
