"""Programs of the update: compiled once a shape, told, and interruptible."""

import logging
import os
import signal
import threading
import time

import pytest

from fusion_jax.data.batching import Shape
from fusion_jax.training.signals import stop_on_signals
from fusion_jax.training.step_programs import StepPrograms

_SHORT, _LONG = Shape(64, 8, 16), Shape(16, 32, 64)


@pytest.fixture(autouse=True)
def _all_lines(caplog):
  caplog.set_level(logging.INFO, 'fusion_jax')


def test_each_shape_is_compiled_once_and_told(caplog):
  made = []
  programs = StepPrograms(made.append, 2)
  programs.begin(_LONG)
  for shape in (_LONG, _SHORT, _LONG, _SHORT):
    programs.wait_for(shape)
  assert made == [_LONG, _SHORT]
  assert programs.compiling == ''
  first, ended, second, _ = caplog.messages
  assert first == (
    'compiling shape 1 of 2 (16 rows of 32 source and 64 target subwords) ...'
  )
  assert ended == 'compiled shape 1 of 2 in 0.0 s'
  assert second.startswith('compiling shape 2 of 2 (64 rows of 8 source')


def test_an_error_of_the_compiler_reaches_the_loop():
  def fail(_):
    raise MemoryError('too large')

  with pytest.raises(MemoryError, match='too large'):
    StepPrograms(fail, 1).wait_for(_SHORT)


@pytest.fixture
def _interruptible():
  """Takes SIGINT as a program does; workers of the tests ignore it."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures('_interruptible')
def test_ctrl_c_is_answered_while_a_shape_is_compiled(caplog):
  """Says what it waits for; the second ends the wait, not the compiler."""
  may_end, answered = threading.Event(), []

  def compile_slowly(_):
    for _ in range(2):
      time.sleep(0.1)
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(0.1)
      answered.append(caplog.messages[-1])
    may_end.wait(60)

  programs = StepPrograms(compile_slowly, 8)
  with stop_on_signals(programs) as stop:
    with pytest.raises(KeyboardInterrupt):
      programs.wait_for(_SHORT)
    assert stop(0)
  may_end.set()
  programs.wait_for(_SHORT)
  assert answered[0] == (
    'SIGINT: saving, then stopping, once shape 1 of 8 is compiled; '
    'a second one stops at once'
  )
