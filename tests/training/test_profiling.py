"""Which steps a profile has."""

import argparse

import jax
import pytest

from fusion_jax.config.flags import step_range
from fusion_jax.training.profiling import Profiler


@pytest.mark.parametrize('text', ['', '3', '3:', '0:4', '5:4', 'a:b', '1:2:3'])
def test_a_range_that_is_none_is_refused(text):
  with pytest.raises(argparse.ArgumentTypeError, match='FIRST:LAST'):
    step_range(text)


def test_a_profile_has_its_steps_and_ends_with_the_run(tmp_path, monkeypatch):
  events = []
  monkeypatch.setattr(
    jax.profiler, 'start_trace', lambda folder: events.append('on')
  )
  monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: events.append('off'))
  profiler = Profiler(tmp_path, step_range('2:3'))
  for step in range(1, 6):
    with profiler.step(step):
      events.append(step)
  profiler.close()
  assert events == [1, 'on', 2, 3, 'off', 4, 5]
  until_the_end = Profiler(tmp_path, (2, 9))
  with until_the_end.step(2):
    pass
  until_the_end.close()
  assert events[-2:] == ['on', 'off']
