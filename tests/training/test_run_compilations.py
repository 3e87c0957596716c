"""A run compiles every program once, and says so."""

import dataclasses
import logging
import re
from contextlib import nullcontext

import pytest
from compilations import compiled

from fusion_jax.config import (
  BatchConfig,
  DataConfig,
  ExperimentConfig,
  ModelConfig,
  OptimizerConfig,
  TokenizerConfig,
  TrainingConfig,
)
from fusion_jax.training import loop

pytestmark = pytest.mark.extended


def _config(prepared) -> ExperimentConfig:
  return ExperimentConfig(
    data=DataConfig(
      prepared=str(prepared),
      embedded_pairs=300,
      tokenizer=TokenizerConfig(vocabulary_size=300),
      batch=BatchConfig(tokens=1_024, shapes=2),
    ),
    model=ModelConfig(
      width=16, filter=16, heads=2, encoder_layers=1, decoder_layers=1
    ),
    optimizer=OptimizerConfig(warmup_steps=10),
    training=TrainingConfig(
      steps=60,
      log_every=5,
      save_every=10,
      validate_every=20,
      translate_sentences=2,
    ),
  )


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """All programs, how many there were at each step, the log, the folder."""
  folder = tmp_path_factory.mktemp('run')
  counts, lines = {}, []
  handler = logging.Handler()
  handler.emit = lambda record: lines.append(record.getMessage())
  log = logging.getLogger('fusion_jax')
  level = log.level
  with pytest.MonkeyPatch.context() as patch, compiled() as names:

    def after(step):
      counts[step] = len(names)
      return False

    def before_the_first(_):
      after(0)
      return nullcontext(after)

    patch.setattr(loop, 'stop_on_signals', before_the_first)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
      loop.run(_config(folder / 'prepared'), folder / 'run')
    finally:
      log.removeHandler(handler)
      log.setLevel(level)
  return names, counts, lines, folder


def test_nothing_is_compiled_after_the_first_epoch_and_validation(run):
  names, counts, lines, _ = run
  assert '2 training shapes' in ' '.join(lines)
  assert sum('validation at' in line for line in lines) == 3
  # Two validations, four saves and most of the epochs come after this step.
  assert names[counts[21] :] == []
  assert counts[60] == len(names)


def test_the_step_is_compiled_once_a_shape(run):
  names, counts, *_ = run
  assert sum('train_step' in name for name in names) == 2
  assert counts[1] < counts[21]


def test_the_first_step_is_compiled_before_the_updates_begin(run):
  names, counts, *_ = run
  assert sum('train_step' in name for name in names[: counts[0]]) == 1


def test_the_validation_loss_takes_no_more_shapes_than_the_step(run):
  names, *_ = run
  assert sum('eval_step' in name for name in names) == 2


def test_the_log_says_what_was_compiled(run):
  names, _, lines, _ = run
  told = [line for line in lines if re.match(r'\d+ programs compiled', line)]
  total = next(line for line in lines if line.startswith('in all,'))
  numbers = [int(line.split()[0]) for line in told]
  assert total.split()[2] == str(sum(numbers))
  # Counted apart, by the test; what the end of a run needs is in both.
  assert sum(numbers) == len(names)
  assert re.search(r'compiled in \d+\.\d s', total)


def test_a_run_that_is_finished_makes_no_state_and_no_step(run):
  names, *_, folder = run
  assert any('fresh_state' in name for name in names)
  with compiled() as later:
    loop.run(_config(folder / 'prepared'), folder / 'run')
  for program in ('fresh_state', 'train_step'):
    assert not any(program in name for name in later)


def test_a_resumed_run_compiles_the_step_once_a_shape(run):
  config = _config(run[-1] / 'prepared')
  longer = dataclasses.replace(config.training, steps=80)
  with compiled() as later:
    loop.run(dataclasses.replace(config, training=longer), run[-1] / 'run')
  assert not any('fresh_state' in name for name in later)
  assert sum('train_step' in name for name in later) == 2
