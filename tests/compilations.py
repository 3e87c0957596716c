"""What is compiled within a block, for tests that allow nothing to be."""

import contextlib
from collections.abc import Iterator

import jax

_MADE = '/jax/core/compile/backend_compile_duration'


@contextlib.contextmanager
def compiled() -> Iterator[list[str]]:
  """Gives the names of the programs that JAX compiles within the block.

  What JAX has kept in memory is not compiled; what it reads from a cache on
  disk counts as compiled.
  """
  names = []

  def made(event: str, seconds: float, **named) -> None:
    if event == _MADE:
      names.append(named.get('fun_name', '?'))

  jax.monitoring.register_event_duration_secs_listener(made)
  try:
    yield names
  finally:
    jax.monitoring.unregister_event_duration_listener(made)
