"""What is told of processes that are lost, behind, or have failed."""

import types

import pytest

from fusion_jax.parallel import heartbeat
from fusion_jax.parallel.heartbeat import Watch


@pytest.fixture
def clock(monkeypatch):
  """A clock that is set by hand."""
  now = [100.0]
  clock = types.SimpleNamespace(monotonic=lambda: now[0])
  monkeypatch.setattr(heartbeat, 'time', clock)
  return now


def _beat(folder, process, text, start='a1'):
  (folder / str(process)).write_text(f'{start} {text}')


def test_a_process_without_new_beats_is_lost(tmp_path, clock):
  watch = Watch(tmp_path, 3, 'a1')
  for beat in range(4):
    clock[0] += 1
    for process in range(3 if beat < 2 else 2):
      _beat(tmp_path, process, f'{beat + 7} 1 {beat}')
    watch.look()
  # Process 2 beat last at step 8, two seconds ago.
  assert watch.lost(2.0) == ''
  assert watch.lost(1.5) == (
    'no heartbeat for 1.5 s from process 2 (last seen at step 8)'
  )


def test_the_process_that_is_behind_is_named(tmp_path, clock):
  watch = Watch(tmp_path, 2, 'a1')
  for beat in range(9):
    clock[0] += 1
    # Both beat; process 0 stops at step 5, process 1 at 3.
    _beat(tmp_path, 0, f'{min(beat, 5)} 1 {beat}')
    _beat(tmp_path, 1, f'{min(beat, 3)} 1 {beat}')
    watch.look()
  assert watch.lost(1.0) == ''
  # The last new step was that of beat 5, three seconds ago.
  assert watch.stalled(3.0) == ''
  assert watch.stalled(2.5) == (
    'no process has begun a step for 2.5 s: the last is 5, and 3 on process 1'
  )


def test_of_two_at_a_step_the_one_without_a_batch_is_behind(tmp_path, clock):
  watch = Watch(tmp_path, 3, 'a1')
  for process in range(3):
    _beat(tmp_path, process, f'30 {int(process != 1)} 7')
  watch.look()
  clock[0] += 9
  assert watch.stalled(8.0) == (
    'no process has begun a step for 8 s: the last is 30, and 30 on process '
    '1, which still waits for its input'
  )


def test_what_an_earlier_start_left_is_no_sign_of_life(tmp_path, clock):
  _beat(tmp_path, 0, '60 1 12 text.array_record, record 7: damaged', 'b2')
  watch = Watch(tmp_path, 1, 'a1')
  clock[0] += 5
  watch.look()
  assert watch.failed() == ''
  assert 'process 0 (last seen at step -1)' in watch.lost(4.0)


def test_a_failure_from_before_the_watch_began_is_passed_on(tmp_path):
  _beat(tmp_path, 0, '0 0 1 text.array_record, record 7: damaged')
  watch = Watch(tmp_path, 1, 'a1')
  watch.look()
  assert watch.failed() == 'process 0: text.array_record, record 7: damaged'


def test_the_reason_of_a_failure_is_passed_on(tmp_path, clock):
  watch = Watch(tmp_path, 2, 'a1')
  _beat(tmp_path, 0, '3 1 1')
  _beat(tmp_path, 1, '3 0 1 text.array_record, record 7: damaged')
  watch.look()
  assert watch.failed() == 'process 1: text.array_record, record 7: damaged'
