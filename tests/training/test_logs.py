"""What a run logs: whole lines and records, also on a full disk; W&B."""

import contextlib
import dataclasses
import json
import resource
import struct
import sys
import types

import jax
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c

from fusion_jax.config import ExperimentConfig
from fusion_jax.errors import InputError
from fusion_jax.files import AppendedFile
from fusion_jax.training import build
from fusion_jax.training.build import check_experiment
from fusion_jax.training.logs import MetricsLog


@contextlib.contextmanager
def _files_of_at_most(size):
  """The operating system refuses what is larger, as a full disk does."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _events(folder):
  """The events of all files, read by the definition of a TFRecord."""
  found = []
  for path in sorted(folder.glob('events.out.tfevents.*')):
    content = path.read_bytes()
    while content:
      (size,) = struct.unpack('<Q', content[:8])
      checks = (
        struct.unpack('<I', content[8:12])[0],
        struct.unpack('<I', content[12 + size : 16 + size])[0],
      )
      body = content[12 : 12 + size]
      assert checks == (masked_crc32c(content[:8]), masked_crc32c(body))
      found.append(Event.FromString(body))
      content = content[16 + size :]
  return found


def test_lines_and_curves_have_the_same_numbers(tmp_path):
  log = MetricsLog(_WITHOUT, tmp_path, 10)
  log.write(11, 'train', {'loss': 2.5, 'bleu/de-en': 7.0})
  log.write(12, 'valid', {'loss': float('nan')})
  log.close()
  lines = (tmp_path / 'metrics.jsonl').read_text().splitlines()
  assert [json.loads(line) for line in lines] == [
    {'step': 11, 'kind': 'train', 'loss': 2.5, 'bleu/de-en': 7.0},
    {'step': 12, 'kind': 'valid', 'loss': None},
  ]
  version, start, *points = _events(tmp_path)
  assert version.file_version == 'brain.Event:2'
  assert (start.step, start.session_log.status) == (11, SessionLog.START)
  first, second = points
  assert {v.tag: v.simple_value for v in first.summary.value} == {
    'train/loss': 2.5,
    'train/bleu/de-en': 7.0,
  }
  assert (first.step, second.step) == (11, 12)


def test_a_full_disk_is_told_and_leaves_whole_lines(tmp_path):
  log = MetricsLog(_WITHOUT, tmp_path, 0)

  def write_a_hundred():
    for step in range(100):
      log.write(step, 'train', {'loss': 0.5, 'perplexity': 1.5})

  with _files_of_at_most(1_000), pytest.raises(InputError) as error:
    write_a_hundred()
  message = str(error.value)
  assert 'cannot be written: ' in message
  assert 'it resumes from the last whole checkpoint' in message
  lines = (tmp_path / 'metrics.jsonl').read_bytes().splitlines(keepends=True)
  assert 2 < len(lines) < 100
  assert [json.loads(line)['step'] for line in lines] == [*range(len(lines))]
  assert lines[-1].endswith(b'\n')
  assert len(_events(tmp_path)) > 2
  log.close()


def test_a_piece_that_does_not_fit_is_taken_back(tmp_path):
  path = tmp_path / 'file'
  file = AppendedFile(path)
  file.append(b'12345678')
  # Two bytes of the second piece fit.
  with _files_of_at_most(10), pytest.raises(InputError, match=str(path)):
    file.append(b'abcdef')
  assert path.read_bytes() == b'12345678'
  file.append(b'abcdef')
  file.close()
  assert path.read_bytes() == b'12345678abcdef'


def test_a_file_that_cannot_be_made_is_named(tmp_path):
  with pytest.raises(InputError, match='absent/file: cannot be written: No'):
    AppendedFile(tmp_path / 'absent' / 'file')


def test_a_file_that_is_deleted_meanwhile_is_told(tmp_path):
  file = AppendedFile(tmp_path / 'file')
  file.append(b'one')
  (tmp_path / 'file').unlink()
  with pytest.raises(InputError, match='it was deleted'):
    file.append(b'two')
  file.close()


_WITHOUT = ExperimentConfig(name='mine')
_ASKED = dataclasses.replace(
  _WITHOUT, training=dataclasses.replace(_WITHOUT.training, wandb='layers')
)


class _Wandb(types.ModuleType):
  """What is used of the package."""

  class Error(Exception):
    pass

  def __init__(self):
    super().__init__('wandb')
    self.begun, self.points, self.ended, self.trouble = [], [], 0, None

  def init(self, **options):
    if self.trouble:
      raise self.Error(self.trouble)
    self.begun.append(options)
    return self

  def log(self, values, step):
    self.points.append((step, values))

  def finish(self):
    self.ended += 1


@pytest.fixture
def wandb(monkeypatch):
  fake = _Wandb()
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  return fake


def test_the_points_are_those_of_the_files(wandb, tmp_path):
  for _ in range(2):
    log = MetricsLog(_ASKED, tmp_path, 0)
    log.write(1, 'train', {'loss': 2.5})
    log.close()
  assert wandb.points == [(1, {'train/loss': 2.5})] * 2
  assert wandb.ended == 2
  options, resumed = wandb.begun
  assert options['id'] == resumed['id'] != ''
  assert resumed['resume'] == 'allow'
  assert options['project'] == 'layers'
  assert options['name'] == 'mine'
  assert options['dir'] == str(tmp_path)
  assert options['config']['training']['wandb'] == 'layers'
  json.dumps(options['config'])


def test_what_wandb_refuses_is_one_line(wandb, tmp_path):
  wandb.trouble = 'api_key not configured (no-tty)\nrun wandb login'
  with pytest.raises(InputError) as error:
    MetricsLog(_ASKED, tmp_path, 0)
  assert str(error.value) == (
    'config.training.wandb: api_key not configured (no-tty)'
  )


def test_a_missing_package_is_one_line_and_only_where_it_is_asked_for(
  monkeypatch,
):
  monkeypatch.setattr(build, 'find_spec', lambda name: None)
  check_experiment(_WITHOUT, jax.devices())
  with pytest.raises(InputError, match=r'training\.wandb: .*pip install wandb'):
    check_experiment(_ASKED, jax.devices())
