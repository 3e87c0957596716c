"""The accelerator's plan: budget, resumption, failures, tables; a tiny run."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks import accelerator
from benchmarks.accelerator import (
  carry_out,
  expected_minutes,
  peak_tflops,
  utilisation,
)
from benchmarks.accelerator_plan import Place, Row, plan
from benchmarks.contestants import packed_batches
from benchmarks.kernels import Event, device_events, kernels
from benchmarks.serving import ROOT
from benchmarks.sizes import SIZES
from fusion_jax.errors import CheckFailed

H100 = 'NVIDIA H100 80GB HBM3'
GPU = {'platform': 'gpu', 'kind': H100, 'runtime': 'cuda', 'peak_tflops': 989.0}
FIGURE = {
  'seconds': {'median': 0.01, 'min': 0.01, 'max': 0.01},
  'target_tokens': 8_000.0,
}


class Fake:
  """Rows that take time on a clock of their own; what they do is noted.

  compiles, measures: seconds by row. endings: what raises, once.
  """

  def __init__(self, compiles, measures=1.0, **endings):
    self.compiles, self.measures = compiles, measures
    self.endings, self.now, self.calls = endings, 0.0, []
    self.results = {
      name: {} for name in ('figures', 'compile_seconds', 'failed', 'left_out')
    }
    self.saved = []

  def _do(self, name, seconds):
    self.now += seconds
    self.calls.append(name)
    if error := self.endings.pop(name.replace(' ', '_'), None):
      raise error

  def rows(self, **changes):
    def row(name, compiles):
      def measure(_):
        self._do(f'measure {name}', self.measures)
        return FIGURE

      def prepare(_):
        self._do(f'prepare {name}', compiles)
        return measure

      row = Row(name, prepare, compiles, self.measures)
      return row._replace(**changes.get(name, {}))

    return [row(*each) for each in self.compiles.items()]

  def carry_out(self, seconds=1_000.0, cores=1, **changes):
    end, rows = self.now + seconds, self.rows(**changes)
    carry_out(rows, self.results, lambda: end - self.now, cores, self.save)

  def save(self):
    self.saved.append(json.dumps(self.results))


def test_everything_is_compiled_in_order_before_anything_is_measured():
  fake = Fake({'a': 1, 'b': 1, 'c': 1})
  fake.carry_out()
  steps = [f'{step} {row}' for step in ('prepare', 'measure') for row in 'abc']
  assert fake.calls == steps
  assert set(fake.results['figures']) == {'a', 'b', 'c'}


def test_a_program_beside_is_measured_first_and_gives_its_memory_back():
  fake = Fake({'a': 1, 'b': 1})
  fake.carry_out(b={'starts': True})
  assert [call for call in fake.calls if 'measure' in call] == [
    'measure b',
    'measure a',
  ]


def test_what_cannot_be_compiled_and_measured_in_time_is_named():
  # 100 s: a leaves 59 s for b, c and d, with a second to measure a and each.
  fake = Fake({'a': 40, 'b': 58, 'c': 30, 'd': 26})
  fake.carry_out(100)
  assert [call for call in fake.calls if 'prepare' in call] == [
    'prepare a',
    'prepare b',
  ]
  assert fake.results['left_out'] == {
    'c': 'not compiled: only 0 s were left for it',
    'd': 'not compiled: only 0 s were left for it',
  }
  assert set(fake.results['figures']) == {'a', 'b'}


def test_what_is_not_measured_in_time_is_named():
  fake = Fake({'a': 1, 'b': 5})
  # The second compilation takes four seconds longer than is expected.
  fake.carry_out(7.5, b={'compiles': 1})
  assert fake.results['left_out'] == {'b': 'the time was over'}
  assert set(fake.results['figures']) == {'a'}


def test_a_cut_loses_one_figure_and_the_next_command_does_the_rest():
  fake = Fake({'a': 1, 'b': 1, 'c': 1}, measure_b=KeyboardInterrupt())
  with pytest.raises(KeyboardInterrupt):
    fake.carry_out()
  assert set(json.loads(fake.saved[-1])['figures']) == {'a'}
  fake.calls.clear()
  fake.carry_out()
  assert fake.calls == ['prepare b', 'prepare c', 'measure b', 'measure c']


def test_a_failure_is_one_line_and_is_tried_again_after_the_rest():
  memory = RuntimeError('RESOURCE_EXHAUSTED: out of memory\nmore')
  fake = Fake(
    {'a': 1, 'b': 1, 'c': 1}, prepare_a=ValueError('no cuDNN'), measure_b=memory
  )
  fake.carry_out()
  assert fake.results['failed'] == {
    'a': 'no cuDNN',
    'b': 'RESOURCE_EXHAUSTED: out of memory',
  }
  assert set(fake.results['figures']) == {'c'}
  fake.results['figures'].clear()
  fake.calls.clear()
  fake.carry_out()
  assert fake.calls[:3] == ['prepare c', 'prepare a', 'prepare b']
  assert fake.results['failed'] == {}


def test_a_row_without_what_it_needs_is_left_out():
  fake = Fake({'a': 1})
  fake.carry_out(a={'missing': 'no --data'})
  assert fake.results['left_out'] == {'a': 'no --data'}
  assert fake.calls == []


def test_expected_minutes_by_hand():
  fake = Fake({'a': 60, 'b': 120, 'c': 90}, measures=20)
  rows = fake.rows(c={'starts': True})
  # On two cores (60 + 120) / 2 s, and 90 s beside; three times 20 s.
  assert expected_minutes(rows, 2) == (1.5, 1.0)
  assert expected_minutes(fake.rows(c={'missing': 'x'}), 1) == (3.0, 40 / 60)


def gpu_plan(tmp_path, monkeypatch):
  monkeypatch.setattr('importlib.util.find_spec', lambda _: object())
  return plan(Place(tmp_path, tmp_path, False, 'gpu'))


def test_the_whole_plan_fits_nine_minutes_of_sixteen_cores(
  tmp_path, monkeypatch
):
  rows = gpu_plan(tmp_path, monkeypatch)
  assert [row.name for row in rows[:3]] == [
    'base 64 plain',
    'base 64 cudnn',
    'base 256 cudnn',
  ]
  names = [row.name for row in rows]
  assert len(names) == len(set(names)) >= 20
  assert all(row.base in {'', *names} for row in rows)
  assert sum(expected_minutes(rows, 16)) < 9


def test_the_plan_without_data_or_peers(tmp_path, monkeypatch):
  monkeypatch.setattr('importlib.util.find_spec', lambda _: None)
  monkeypatch.setattr('benchmarks.common.PEERS_PYTHON', tmp_path / 'none')
  place = Place(tmp_path, None, False, 'gpu')
  missing = {row.missing for row in plan(place)}
  assert missing == {
    '',
    'no --data',
    'PyTorch is not installed',
    'CTranslate2 is not installed',
  }
  on_tpu = {row.missing for row in plan(place._replace(platform='tpu'))}
  assert 'PyTorch knows no tpu' in on_tpu


@pytest.mark.parametrize(
  ('kind', 'peak'),
  # The makers' data sheets, dense products of bfloat16.
  [(H100, 989.0), ('TPU v5 lite', 197.0), ('NVIDIA H100 PCIe', None)],
)
def test_peaks(kind, peak):
  assert peak_tflops(kind) == peak


def test_utilisation_by_hand():
  # 4,945 GFLOP in 10 ms are 494.5 TFLOP/s, half of 989.
  own = FIGURE | {'gflop': 4_945.0}
  assert utilisation(own, GPU) == pytest.approx(0.5)
  assert utilisation(own, {'peak_tflops': None}) is None


def test_kernels_by_hand():
  # Two streams; in ms: a runs 0-4, b 2-6 beside it, nothing runs until 8, then
  # a until 10.
  events = [
    Event('a', 'dot.1', 0, 4e6),
    Event('b', '', 2e6, 6e6),
    Event('a', 'dot.1', 8e6, 10e6),
  ]
  found = kernels(events, {'dot.1': 'attention'}, steps=2)
  assert found['milliseconds'] == 5.0
  assert found['calls'] == 1.5
  assert found['idle'] == pytest.approx(0.2)
  assert found['kernels'] == [
    {
      'name': 'a',
      'part': 'attention',
      'calls': 1.0,
      'microseconds': 3_000.0,
      'share': 0.6,
    },
    {
      'name': 'b',
      'part': '',
      'calls': 0.5,
      'microseconds': 2_000.0,
      'share': 0.4,
    },
  ]
  with pytest.raises(CheckFailed, match='no kernels'):
    kernels([], {}, 1)


# A profile as JAX records it on a GPU: kernels in streams, and what encloses
# them on lines of their own; the host's events do not count.
_RECORDED = Path(__file__).with_name('gpu_profile.textproto')


def test_kernels_of_a_recorded_profile():
  data = jax.profiler.ProfileData.from_text_proto(_RECORDED.read_text())
  recorded = Event('gemm_bf16', 'dot.1', 3_000, 6_000)
  assert device_events(data) == [recorded]


def command(monkeypatch, fake, folder, *flags, device=GPU):
  """The exit code of the program, with rows that only take time."""
  monkeypatch.setattr(accelerator, 'plan', lambda _: fake.rows())
  monkeypatch.setattr(accelerator, 'describe', lambda: device)
  monkeypatch.setattr(accelerator, '_keep_compiled', lambda _: None)
  return accelerator.main([f'--output={folder}', *flags])


def test_the_program_resumes_and_tells_of_failures(
  tmp_path, monkeypatch, capsys
):
  fake = Fake({'a': 0, 'b': 0}, measure_b=RuntimeError('no memory'))
  assert command(monkeypatch, fake, tmp_path) == 1
  output = capsys.readouterr()
  assert 'failed: b: no memory' in output.out
  assert H100 in output.out
  assert '800,000' in output.out
  assert 'failed: 1 rows' in output.err
  assert command(monkeypatch, fake, tmp_path) == 0
  results = json.loads((tmp_path / 'accelerator.json').read_text())
  assert set(results['figures']) == {'a', 'b'}
  assert fake.calls.count('measure a') == 1


def test_the_plan_does_nothing(tmp_path, monkeypatch, capsys):
  fake = Fake({'a': 60, 'b': 120}, measures=30)
  flags = '--plan', '--cores=2'
  assert command(monkeypatch, fake, tmp_path, *flags) == 0
  assert '1.5 minutes of compilation and 1.0' in capsys.readouterr().out
  assert fake.calls == []


def test_results_of_another_device_are_refused(tmp_path, monkeypatch, capsys):
  fake = Fake({'a': 0})
  assert command(monkeypatch, fake, tmp_path) == 0
  other = GPU | {'kind': 'NVIDIA H200'}
  assert command(monkeypatch, fake, tmp_path, device=other) == 2
  assert f'has results of {H100}' in capsys.readouterr().err


def test_a_full_measurement_needs_an_accelerator(tmp_path, monkeypatch, capsys):
  own = GPU | {'platform': 'cpu'}
  assert command(monkeypatch, Fake({'a': 0}), tmp_path, device=own) == 2
  assert '--size=tiny' in capsys.readouterr().err


def test_packed_rows_are_whole_pairs_side_by_side():
  size = SIZES['tiny']
  first = packed_batches(size)[0]
  assert first.target.shape == (size.rows, size.length)
  kept = np.arange(size.length) < first.target_lengths[:, None]
  assert ((first.target_segments > 0) == kept).all()
  # 2 to 7 subwords a pair: a full row of 16 has at least 3.
  assert (first.target_segments.max(axis=1) >= 2).mean() > 0.5
  assert first.target_lengths.mean() > 0.8 * size.length


@pytest.mark.extended
def test_a_tiny_run_that_is_killed_has_every_row_in_the_end(tmp_path):
  program = (sys.executable, '-m', 'benchmarks.accelerator')
  program += (f'--output={tmp_path}', '--size=tiny', '--minutes=30')
  path = tmp_path / 'accelerator.json'

  def figures():
    return json.loads(path.read_text())['figures'] if path.exists() else {}

  with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.DEVNULL) as first:
    while first.poll() is None and len(figures()) < 3:
      time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
  before = figures()
  assert len(before) >= 3
  again = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
  results = json.loads(path.read_text())
  assert again.returncode == 0, again.stderr
  assert before.items() <= results['figures'].items()
  missing = {'no --data', 'PyTorch is not installed'}
  assert set(results['left_out'].values()) <= missing
  names = {row.name for row in plan(Place(tmp_path, None, True, 'cpu'))}
  assert names == {*results['figures'], *results['left_out']}
  assert 'kernels and' in again.stdout
