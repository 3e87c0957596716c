"""The accelerator's parts: budget, resumption, failures, utilisation."""

import json
import subprocess

import numpy as np
import pytest

from benchmarks import accelerator
from benchmarks.acceleration import device, speed
from benchmarks.acceleration.device import peak_tflops, utilisation
from benchmarks.acceleration.place import Place, jax_platforms, last_error
from benchmarks.acceleration.work import Part, Piece, State, carry_out
from benchmarks.fusion_jax_step import packed_batches
from benchmarks.sizes import SIZES
from fusion_jax.errors import CheckFailed

H100 = 'NVIDIA H100 80GB HBM3'
DEVICE = {
  'platform': 'gpu',
  'kind': H100,
  'devices': 1,
  'memory_mb': 60_000.0,
  'driver': '580',
  'runtime': 'PJRT C API\ncuda 13000',
  'matmul_precision': 'default',
  'float32_products': 'tf32',
}


class FakePart:
  """Pieces that only take time; `endings` has what ends one, once."""

  def __init__(self, minutes, endings=None, missing=''):
    self.minutes, self.endings = minutes, endings or {}
    self.missing, self.calls, self.left = missing, [], 40.0

  def run(self, name, seconds):
    self.calls.append(name)
    self.left -= self.minutes[name]
    ending = self.endings.pop(name, True)
    if isinstance(ending, BaseException):
      raise ending
    return ending

  def part(self):
    pieces = [
      Piece(name, minutes, lambda s, n=name: self.run(n, s), self.missing)
      for name, minutes in self.minutes.items()
    ]
    # A part of its own each: estimates are those of the pieces.
    return {
      piece.name: Part('fake', [piece], lambda: {}, str) for piece in pieces
    }

  def carry_out(self, state=None, left=40.0):
    self.left = left
    state = state or State({}, {}, {})
    carry_out(self.part(), state, lambda: self.left, lambda: None)
    return state


def test_what_does_not_fit_is_left_out_and_smaller_pieces_are_done():
  fake = FakePart({'a': 10, 'b': 35, 'c': 25, 'd': 6})
  state = fake.carry_out()
  assert fake.calls == ['a', 'c']
  assert list(state.left_out) == ['b', 'd']
  assert '35.0 minutes, of which 30.0 are left' in state.left_out['b']
  assert '6.0 minutes, of which 5.0 are left' in state.left_out['d']


def test_finished_pieces_are_not_repeated_after_a_cut():
  fake = FakePart({'a': 1, 'b': 1, 'c': 1}, {'b': KeyboardInterrupt()})
  state = State({}, {}, {})
  with pytest.raises(KeyboardInterrupt):
    fake.carry_out(state)
  assert list(state.finished) == ['a']
  fake.carry_out(state)
  assert fake.calls == ['a', 'b', 'b', 'c']


def test_a_failure_does_not_stop_the_others():
  endings = {'a': CheckFailed('one line\nmore'), 'b': ZeroDivisionError()}
  fake = FakePart({'a': 1, 'b': 1, 'c': 1}, endings)
  state = fake.carry_out()
  assert state.failed == {'a': 'one line', 'b': 'ZeroDivisionError'}
  assert state.left_out == {}
  assert list(state.finished) == ['c']


def test_a_piece_that_is_stopped_is_left_for_the_next_command():
  stopped = subprocess.TimeoutExpired('train.py', 1)
  fake = FakePart({'a': 1, 'b': 1, 'c': 1}, {'a': stopped, 'b': False})
  state = fake.carry_out()
  assert list(state.finished) == ['c']
  assert 'stopped when the time was over' in state.left_out['a']
  assert 'not finished' in state.left_out['b']
  assert state.failed == {}


def test_a_piece_without_what_it_needs_is_left_out():
  fake = FakePart({'a': 1}, missing='no --data')
  assert fake.carry_out().left_out == {'a': 'no --data'}
  assert fake.calls == []


def test_finished_pieces_tell_how_long_the_others_of_their_part_take():
  pieces = [Piece(name, 1.0, lambda _: True) for name in 'abc']
  part = Part('fake', pieces, lambda: {}, str)
  state = State({'a': 3.0, 'b': 5.0}, {}, {})
  carry_out({'fake': part}, state, lambda: 3.5, lambda: None)
  assert 'about 4.0 minutes' in state.left_out['c']


def command(monkeypatch, fake, folder, *flags):
  """The exit code of the program, with the pieces of a fake part."""
  parts = {
    name: lambda place, part=part: part for name, part in fake.part().items()
  }
  monkeypatch.setattr(accelerator, 'PARTS', parts)
  monkeypatch.setattr(Place, 'start', lambda *_, **__: json.dumps(DEVICE))
  return accelerator.main([f'--output={folder}', *flags])


def test_the_program_resumes_and_tells_of_failures(
  tmp_path, monkeypatch, capsys
):
  fake = FakePart({'a': 1, 'b': 1, 'c': 1}, {'b': CheckFailed('no memory')})
  assert command(monkeypatch, fake, tmp_path) == 1
  output = capsys.readouterr()
  assert output.out == (tmp_path / 'accelerator.md').read_text()
  assert '- b: no memory' in output.out
  assert H100 in output.out
  assert 'failed: 1 pieces' in output.err
  assert command(monkeypatch, fake, tmp_path) == 0
  assert fake.calls == ['a', 'b', 'c', 'b']
  results = json.loads((tmp_path / 'accelerator.json').read_text())
  assert results['failed'] == {}
  assert set(results['finished']) == {'a', 'b', 'c'}


def test_a_cut_leaves_the_finished_pieces_in_the_folder(tmp_path, monkeypatch):
  fake = FakePart({'a': 1, 'b': 1}, {'b': KeyboardInterrupt()})
  # That of a program that Ctrl-C ended.
  assert command(monkeypatch, fake, tmp_path) == 130
  results = json.loads((tmp_path / 'accelerator.json').read_text())
  assert list(results['finished']) == ['a']
  assert results['left_out'] == {'b': 'interrupted: the same command resumes'}
  assert command(monkeypatch, fake, tmp_path) == 0
  assert fake.calls == ['a', 'b', 'b']


def test_chosen_parts(tmp_path, monkeypatch, capsys):
  fake = FakePart({'a': 1, 'b': 1})
  assert command(monkeypatch, fake, tmp_path, '--parts=b') == 0
  assert fake.calls == ['b']
  assert '- a: not in --parts' in capsys.readouterr().out
  assert command(monkeypatch, fake, tmp_path, '--parts=x') == 2
  assert "no 'x'; there are a, b" in capsys.readouterr().err


def test_the_plan_does_nothing(tmp_path, monkeypatch, capsys):
  fake = FakePart({'a': 1.5, 'b': 2.0})
  assert command(monkeypatch, fake, tmp_path, '--plan') == 0
  lines = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert lines[1:] == [['a', '1.5'], ['b', '2.0'], ['all', '3.5']]
  assert fake.calls == []


def test_results_of_another_device_are_refused(tmp_path, monkeypatch, capsys):
  fake = FakePart({'a': 1})
  assert command(monkeypatch, fake, tmp_path) == 0
  monkeypatch.setitem(DEVICE, 'kind', 'NVIDIA H200')
  assert command(monkeypatch, fake, tmp_path) == 2
  assert f'has results of {H100}' in capsys.readouterr().err


def test_a_full_measurement_needs_an_accelerator(tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(DEVICE, 'platform', 'cpu')
  assert command(monkeypatch, FakePart({'a': 1}), tmp_path) == 2
  assert '--size=tiny' in capsys.readouterr().err


@pytest.mark.parametrize(
  ('kind', 'arithmetic', 'peak'),
  [
    # The makers' data sheets, dense.
    (H100, 'bfloat16', 989.0),
    (H100, 'tf32', 495.0),
    (H100, 'float32', 67.0),
    ('NVIDIA A100-SXM4-80GB', 'float32', 19.5),
    ('TPU v5 lite', 'bfloat16', 197.0),
    ('TPU v5 lite', 'float32', None),
    ('NVIDIA H100 PCIe', 'bfloat16', None),
    ('cpu', 'float32', None),
  ],
)
def test_peaks(kind, arithmetic, peak):
  assert peak_tflops(kind, arithmetic) == peak


def test_utilisation_by_hand():
  # 4,945 GFLOP in 10 ms are 494.5 TFLOP/s, half of 989.
  assert utilisation(4_945.0, 0.010, 989.0) == pytest.approx(0.5)
  assert utilisation(4_945.0, 0.010, None) is None


def answers(*seconds):
  """What the contestant of the training steps prints."""
  own = {'gflop': 4_945.0, 'target_tokens': 8_000.0}
  own |= {'compile_seconds': 30.0, 'peak_device_mb': 9_000.0}
  lines = [own | {'seconds': each} for each in ([], *seconds)]
  return '\n'.join(map(json.dumps, lines))


def test_the_speed_of_a_step_by_hand():
  # Five updates in 50, 40 and 100 ms: 10 ms each by the median.
  found = speed.summary(answers([0.05], [0.04], [0.1]), 5, DEVICE, 'bfloat16')
  assert found['seconds_a_step'] == pytest.approx(
    {'median': 0.010, 'min': 0.008, 'max': 0.020}
  )
  assert found['target_tokens_per_second'] == pytest.approx(800_000)
  assert found['utilisation'] == pytest.approx(0.5)


def test_float32_is_measured_against_what_the_device_computes():
  found = speed.summary(answers([0.05]), 5, DEVICE, 'float32')
  assert found['arithmetic'] == 'tf32'
  assert found['utilisation'] == pytest.approx(494.5 / 495)


def test_an_unknown_device_has_no_utilisation(tmp_path):
  own = DEVICE | {'kind': 'another'}
  part = speed.part(Place(tmp_path, None, False, own))
  found = speed.summary(answers([0.05]), 5, own, 'bfloat16')
  assert found['utilisation'] is None
  rows = {'rows': 64, 'length': 128, 'rows_wanted': 64}
  text = part.table({'base bfloat16 dense': found | rows})
  assert "no peak is known of 'another'" in text
  assert '%' not in text


def test_rows_are_halved_until_the_memory_is_enough(tmp_path, monkeypatch):
  asked = []

  def start(place, name, *command, **options):
    rows = next(each for each in command if each.startswith('--rows='))
    asked.append(rows)
    if rows != '--rows=16':
      raise CheckFailed('RESOURCE_EXHAUSTED: out of memory')
    return answers([0.05])

  monkeypatch.setattr(Place, 'start', start)
  place = Place(tmp_path, None, False, DEVICE)
  part = speed.part(place)
  assert part.pieces[0].run(60.0)
  assert asked == ['--rows=64', '--rows=32', '--rows=16']
  assert 'too little memory for 64 rows' in part.table(part.read())


@pytest.mark.parametrize(
  ('error', 'name'), [(3e-7, 'float32'), (3e-4, 'tf32'), (2e-3, 'bfloat16')]
)
def test_the_error_of_a_product_tells_its_arithmetic(error, name):
  assert device.arithmetic(error) == name


def test_a_cpu_multiplies_in_float32():
  assert device.arithmetic(device.product_error()) == 'float32'


def test_packed_rows_are_whole_pairs_side_by_side():
  size = SIZES['tiny']
  first = packed_batches(size)[0]
  assert first.target.shape == (size.rows, size.length)
  kept = np.arange(size.length) < first.target_lengths[:, None]
  assert ((first.target_segments > 0) == kept).all()
  # 2 to 7 subwords a pair: a full row of 16 has at least 3.
  assert (first.target_segments.max(axis=1) >= 2).mean() > 0.5
  assert first.target_lengths.mean() > 0.8 * size.length


def test_programs_never_take_the_cpu_in_place_of_the_device():
  others = {'runtime': ''}
  assert jax_platforms(DEVICE) == 'cuda,cpu'
  assert jax_platforms({'platform': 'tpu'} | others) == 'tpu,cpu'
  assert jax_platforms({'platform': 'cpu'} | others) == 'cpu'


def test_a_failed_program_leaves_one_line(tmp_path):
  place = Place(tmp_path, None, True, DEVICE)
  code = 'raise MemoryError("too large")'
  with pytest.raises(CheckFailed, match=r'^MemoryError: too large; .*logs/a_b'):
    place.start('a b', '-c', code)
  assert place.start('a b', '-c', 'print(input())', requests='1\n') == '1\n'


@pytest.mark.parametrize(
  ('text', 'line'),
  [
    ('x\nerror: no file\n', 'error: no file'),
    (
      'jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: 1\nmore\n',
      'jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: 1',
    ),
    ('killed\n\n', 'killed'),
    ('', ''),
  ],
)
def test_the_last_error_of_a_log(text, line):
  assert last_error(text) == line


def test_what_a_part_adds_is_kept(tmp_path):
  place = Place(tmp_path, None, True, DEVICE)
  place.add('speed', 'a', 1)
  place.add('speed', 'b', 2)
  assert place.measured('speed') == {'a': 1, 'b': 2}
  assert place.measured('search') == {}


def test_the_parts_without_data_or_packages(tmp_path, monkeypatch):
  monkeypatch.setattr('importlib.util.find_spec', lambda _: None)
  place = Place(tmp_path, None, False, DEVICE)
  parts = {name: make(place) for name, make in accelerator.PARTS.items()}
  missing = {
    name: {piece.missing for piece in part.pieces}
    for name, part in parts.items()
  }
  assert missing['speed'] == missing['schemes'] == {''}
  assert missing['search'] == {'', 'the package ctranslate2 is not installed'}
  for name in ('multi30k', 'comparison'):
    assert missing[name] == {'no --data: give the folder of Multi30k'}
    assert len(parts[name].pieces) == 1
