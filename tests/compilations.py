"""What is traced or compiled within a block, for tests that allow nothing."""

import contextlib
from collections.abc import Iterator

import jax

_TRACED = '/jax/core/compile/jaxpr_trace_duration'
_COMPILED = '/jax/core/compile/backend_compile_duration'


def compiled() -> contextlib.AbstractContextManager[list[str]]:
  """Gives the names of the programs that JAX compiles within the block.

  What JAX has kept in memory is not compiled; what it reads from a cache on
  disk counts as compiled.
  """
  return _named(_COMPILED)


def traced() -> contextlib.AbstractContextManager[list[str]]:
  """Gives the names of the functions that JAX traces within the block."""
  return _named(_TRACED)


@contextlib.contextmanager
def _named(wanted: str) -> Iterator[list[str]]:
  names = []

  def made(event: str, seconds: float, **named) -> None:
    if event == wanted:
      names.append(named.get('fun_name', '?'))

  jax.monitoring.register_event_duration_secs_listener(made)
  try:
    yield names
  finally:
    jax.monitoring.unregister_event_duration_listener(made)
