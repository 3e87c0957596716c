"""Weights & Biases, with a module in its place that remembers its calls."""

import dataclasses
import json
import sys
import types

import pytest

from fusion_jax.config import ExperimentConfig
from fusion_jax.errors import InputError
from fusion_jax.training.logs import MetricsLog
from fusion_jax.training.wandb_log import WandbLog, check_wandb

_PLAIN = ExperimentConfig(name='mine')
_ASKED = dataclasses.replace(
  _PLAIN, training=dataclasses.replace(_PLAIN.training, wandb='layers')
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
  log = MetricsLog(tmp_path, 0, WandbLog(_ASKED, tmp_path))
  log.write(1, 'train', {'loss': 2.5})
  log.write(1, 'valid', {'bleu': 7.0})
  log.close()
  assert wandb.points == [(1, {'train/loss': 2.5}), (1, {'valid/bleu': 7.0})]
  assert wandb.ended == 1
  (options,) = wandb.begun
  assert options['project'] == 'layers'
  assert options['name'] == 'mine'
  assert options['dir'] == str(tmp_path)
  assert options['config']['training']['wandb'] == 'layers'
  json.dumps(options['config'])


def test_a_resumed_training_goes_on_with_its_run(wandb, tmp_path):
  for _ in range(2):
    WandbLog(_ASKED, tmp_path).close()
  first, second = wandb.begun
  assert first['id'] == second['id'] != ''
  assert second['resume'] == 'allow'


def test_what_wandb_refuses_is_one_line(wandb, tmp_path):
  wandb.trouble = 'api_key not configured (no-tty)\nrun wandb login'
  with pytest.raises(InputError) as error:
    WandbLog(_ASKED, tmp_path)
  assert str(error.value) == (
    'config.training.wandb: api_key not configured (no-tty)'
  )


def test_a_missing_package_is_one_line_and_only_where_it_is_asked_for(
  monkeypatch,
):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  check_wandb(_PLAIN)
  with pytest.raises(InputError, match=r'training\.wandb: .*pip install wandb'):
    check_wandb(_ASKED)
