"""Counts of the programs that JAX compiles in this process, and their time."""

import threading
from typing import Any, NamedTuple

import jax

# Events of JAX: a program was made ready to run, by the compiler or from the
# cache on disk; and a program was found in that cache.
_MADE = '/jax/core/compile/backend_compile_duration'
_FOUND = '/jax/compilation_cache/cache_hits'


class Compiled(NamedTuple):
  """Counts of the programs that were compiled in a period.

  Attributes:
    programs: Number of all programs.
    found: Number of those that were read from the cache on disk.
    seconds: Sum over all programs, without tracing; some are compiled at the
      same time.
  """

  programs: int = 0
  found: int = 0
  seconds: float = 0.0

  def __str__(self) -> str:
    """Return one line for a log."""
    cached = f', {self.found} of them from the cache' if self.found else ''
    return f'{self.programs} programs compiled in {self.seconds:.1f} s{cached}'


class Compilations:
  """Counter of compilations, from its construction until `close`.

  Attributes:
    total: Everything counted so far.
  """

  def __init__(self):
    self.total = self._told = Compiled()
    self._counting = threading.Lock()
    jax.monitoring.register_event_duration_secs_listener(self._made)
    jax.monitoring.register_event_listener(self._found)

  def news(self) -> Compiled:
    """Return what was compiled since the last call."""
    now, before = self.total, self._told
    self._told = now
    return Compiled(
      now.programs - before.programs,
      now.found - before.found,
      now.seconds - before.seconds,
    )

  def close(self) -> None:
    """Stop counting."""
    jax.monitoring.unregister_event_duration_listener(self._made)
    jax.monitoring.unregister_event_listener(self._found)

  def _made(self, event: str, duration_secs: float, **_: Any) -> None:
    if event == _MADE:
      self._add(Compiled(programs=1, seconds=duration_secs))

  def _found(self, event: str, **_: Any) -> None:
    if event == _FOUND:
      self._add(Compiled(found=1))

  def _add(self, more: Compiled) -> None:
    with self._counting:
      sums = self.total
      self.total = Compiled(
        sums.programs + more.programs,
        sums.found + more.found,
        sums.seconds + more.seconds,
      )
