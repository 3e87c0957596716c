"""Runs inside one process: stopped, resumed, restarted, skipped updates."""

import argparse
import json
import re
import resource
from contextlib import nullcontext

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilations import compiled
from programs import logged_messages

from fusion_jax.config import (
  BatchConfig,
  DataConfig,
  ExperimentConfig,
  ModelConfig,
  OptimizerConfig,
  TokenizerConfig,
  TrainingConfig,
)
from fusion_jax.config.flags import step_range
from fusion_jax.config.presets import changed
from fusion_jax.data.prepare import prepare
from fusion_jax.errors import InputError
from fusion_jax.runs.loading import CheckpointSelection, load_run
from fusion_jax.training import build, loop
from fusion_jax.training.loop import Profiler
from fusion_jax.training.optimizer import make_optimizer, trained_part

pytestmark = pytest.mark.extended


@pytest.fixture(scope='module')
def config(tmp_path_factory):
  """300 pairs, 8 updates; no validation but at the end."""
  return ExperimentConfig(
    data=DataConfig(
      prepared=str(tmp_path_factory.mktemp('data') / 'prepared'),
      embedded_pairs=300,
      tokenizer=TokenizerConfig(vocabulary_size=300),
      batch=BatchConfig(tokens=2_048, shapes=1),
    ),
    model=ModelConfig(
      width=16, filter=16, heads=2, encoder_layers=1, decoder_layers=1
    ),
    optimizer=OptimizerConfig(warmup_steps=10),
    training=TrainingConfig(
      steps=8, log_every=1, save_every=4, translate_sentences=1, keep_last=9
    ),
  )


def _rows(workdir, kind='train'):
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [row for row in map(json.loads, lines) if row['kind'] == kind]


def test_a_hidden_copy_to_the_device_is_an_error(config, tmp_path, monkeypatch):
  restore = loop._restore_or_start

  def with_totals_on_the_host(*arguments):
    position = restore(*arguments)
    position.totals = jax.device_get(position.totals)
    return position

  monkeypatch.setattr(loop, '_restore_or_start', with_totals_on_the_host)
  with pytest.raises(RuntimeError, match='Disallowed host-to-device transfer'):
    loop.run(config, tmp_path / 'run')


def test_the_last_update_is_told(config, tmp_path):
  loop.run(changed(config, {'training.log_every': 5}), tmp_path / 'run')
  assert [row['step'] for row in _rows(tmp_path / 'run')] == [5, 8]


@pytest.fixture(scope='module')
def recipe(config):
  """All that gives the state another form."""
  return changed(
    config,
    {
      'model.compute_dtype': 'bfloat16',
      'optimizer.schedule': 'inverse_sqrt',
      'optimizer.peak': 0.01,
      'optimizer.warmup_steps': 3,
      'optimizer.weight_decay': 0.01,
      'optimizer.moments_dtype': 'bfloat16',
      'training.freeze': ('encoder/*/self_attention/*',),
      'training.ema': 0.5,
      'training.validate_every': 8,
    },
  )


@pytest.fixture(scope='module')
def unbroken(recipe, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('runs') / 'unbroken'
  loop.run(recipe, workdir)
  return workdir


def test_a_stopped_run_ends_in_the_same_state(recipe, unbroken, tmp_path):
  workdir = tmp_path / 'run'
  loop.run(changed(recipe, {'training.steps': 4}), workdir)
  loop.run(recipe, workdir)
  for kind in ('last', 'ema'):
    chex.assert_trees_all_equal(
      load_run(
        workdir, CheckpointSelection('last', parameters=kind)
      ).parameters,
      load_run(
        unbroken, CheckpointSelection('last', parameters=kind)
      ).parameters,
    )
  rates = [[r['learning_rate'] for r in _rows(w)] for w in (workdir, unbroken)]
  assert rates[0] == rates[1]


def test_what_is_frozen_stays_and_what_is_averaged_follows(unbroken):
  trees = {
    (step, kind): load_run(
      unbroken, CheckpointSelection(step, parameters=kind)
    ).parameters
    for step in (4, 8)
    for kind in ('last', 'ema')
  }
  frozen = trees[4, 'last']['encoder']['layer_0']['self_attention']
  for tree in trees.values():
    chex.assert_trees_all_equal(
      tree['encoder']['layer_0']['self_attention'], frozen
    )
  embeddings = [np.asarray(tree['source_embedding']) for tree in trees.values()]
  for index, one in enumerate(embeddings):
    assert all(not np.array_equal(one, two) for two in embeddings[:index])


def test_validation_reads_the_average(recipe, unbroken, tmp_path):
  # Another run whose parameters are that average validates alike.
  plain = changed(
    recipe,
    {
      'training.ema': 0.0,
      'training.freeze': (),
      'training.steps': 1,
      'training.init_from': str(unbroken),
      'optimizer.peak': 1e-30,
    },
  )
  loop.run(plain, tmp_path / 'run')
  (there,), (here,) = (_rows(w, 'valid') for w in (unbroken, tmp_path / 'run'))
  assert here['loss'] == pytest.approx(there['loss'], rel=1e-6)


def test_a_restart_keeps_the_parameters_and_nothing_of_the_optimizer(
  recipe, unbroken, tmp_path, monkeypatch
):
  # The second phase of Wang et al. (2018): a constant rate, smaller batches.
  second = changed(
    recipe,
    {
      'optimizer.schedule': 'constant',
      'optimizer.peak': 5e-5,
      'optimizer.warmup_steps': 1,
      'data.batch.tokens': 820,
      'training.init_from': str(unbroken),
    },
  )
  states = []
  monkeypatch.setattr(
    loop, 'train', lambda parts, at, *others: states.append(at.state) or 0
  )
  loop.run(second, tmp_path / 'run')
  (state,) = states
  ended = load_run(unbroken).parameters
  chex.assert_trees_all_equal(state.parameters, ended)
  chex.assert_trees_all_equal(state.average, ended)
  freeze = second.training.freeze
  fresh = make_optimizer(second.optimizer, 16, 8).init(
    trained_part(ended, freeze)
  )
  chex.assert_trees_all_equal(state.optimizer, fresh)
  assert int(state.step) == 0


def test_a_pattern_that_matches_nothing_leaves_no_run(config, tmp_path):
  wrong = changed(config, {'training.freeze': ('encoder/layer_9/*',)})
  with pytest.raises(InputError, match=r"'encoder/layer_9/\*' matches no"):
    loop.run(wrong, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def _rare_token(config):
  """A source token of one pair of the corpus, so of one batch an epoch."""
  split = prepare(config.data).split('train')
  sources = [split[index].source for index in range(len(split))]
  pairs = np.zeros(300, np.int32)
  for source in sources:
    pairs[np.unique(source)] += 1
  return int(np.flatnonzero(pairs == 1)[0])


def _with_a_huge_row(monkeypatch, rows):
  """Fresh states whose embeddings of these tokens overflow times sqrt(D)."""
  plan_state = build.plan_state

  def plan(*arguments):
    own = plan_state(*arguments)

    def make():
      state = own.make()
      table = state.parameters['source_embedding'].at[jnp.array(rows)].set(3e38)
      return state._replace(
        parameters=state.parameters | {'source_embedding': table}
      )

    return own._replace(make=make)

  monkeypatch.setattr(build, 'plan_state', plan)


def test_one_bad_batch_an_epoch_is_skipped(
  config, tmp_path, monkeypatch, caplog
):
  token = _rare_token(config)
  _with_a_huge_row(monkeypatch, [token])
  steps = 25
  often_saved = changed(
    config,
    {
      # 3e38 in the source table alone; that of the targets is another.
      'model.tied_embeddings': 'target_output',
      'training.steps': steps,
      'training.save_every': 1,
      'training.keep_last': 99,
    },
  )
  loop.run(often_saved, tmp_path / 'run')
  rows = _rows(tmp_path / 'run')
  skipped = sorted(set(range(1, steps + 1)) - {r['step'] for r in rows})
  per_epoch = round(1 / rows[0]['epoch'])
  epochs = [(step - 1) // per_epoch for step in skipped]
  assert epochs[:2] == [0, 1]
  assert len(epochs) == len(set(epochs))
  assert all(np.isfinite(row['loss']) for row in rows)
  assert rows[-1]['skipped'] == len(skipped)
  # A process with JAX has more than 100 MB.
  most = 1_024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  assert 1e8 < rows[-1]['peak_memory'] <= most
  assert (
    f'step {skipped[1]}: 1 update(s) skipped since the last report, the first '
    f'at step {skipped[1]}: loss or gradient not finite; 2 so far'
  ) in caplog.text
  saved = {int(p.name) for p in (tmp_path / 'run' / 'checkpoints').iterdir()}
  assert saved == {row['step'] for row in rows}
  # Adam's updates, and so the rate, do not count them.
  rates = {row['step']: row['learning_rate'] for row in rows}
  width, warmup = 16, 10
  for step, rate in rates.items():
    t = step - sum(bad < step for bad in skipped)
    expected = width**-0.5 * min(t**-0.5, t * warmup**-1.5)
    assert rate == pytest.approx(expected, rel=1e-5)


def test_bad_batches_in_a_row_end_the_run(config, tmp_path, monkeypatch):
  _with_a_huge_row(monkeypatch, range(300))
  strict = changed(
    config,
    {
      'training.max_skipped': 3,
      'training.log_every': 5,
      'training.save_every': 1,
    },
  )
  with pytest.raises(InputError) as error:
    loop.run(strict, tmp_path / 'run')
  message = str(error.value)
  assert '\n' not in message
  assert message.startswith(
    'step 1: the loss or its gradient is not finite (batch 0, epoch 0, shape ('
  )
  assert (
    '3 updates in a row were skipped and training.max_skipped is 3; the last '
    'good checkpoint is none'
  ) in message
  assert list((tmp_path / 'run' / 'checkpoints').iterdir()) == []


def test_a_run_that_ends_in_skipped_updates_is_saved_and_not_validated(
  config, tmp_path, monkeypatch
):
  _with_a_huge_row(monkeypatch, range(300))
  loop.run(changed(config, {'training.max_skipped': 9}), tmp_path / 'run')
  saved = [p.name for p in (tmp_path / 'run' / 'checkpoints').iterdir()]
  assert saved == ['8']
  metrics = tmp_path / 'run' / 'metrics.jsonl'
  assert metrics.read_text() == ''


@pytest.fixture(scope='module')
def two_shapes(config):
  return changed(
    config,
    {
      'data.batch.tokens': 1_024,
      'data.batch.shapes': 2,
      'training.steps': 60,
      'training.log_every': 5,
      'training.save_every': 10,
      'training.validate_every': 20,
      'training.translate_sentences': 2,
    },
  )


@pytest.fixture(scope='module')
def finished(two_shapes, tmp_path_factory):
  """All programs, how many there were at each step, the log, the folder."""
  workdir, counts = tmp_path_factory.mktemp('two_shapes') / 'run', {}
  with pytest.MonkeyPatch.context() as patch, compiled() as names:

    def after(step):
      counts[step] = len(names)
      return False

    def before_the_first(_):
      after(0)
      return nullcontext(after)

    patch.setattr(loop, 'stop_on_signals', before_the_first)
    with logged_messages() as lines:
      loop.run(two_shapes, workdir)
  return names, counts, lines, workdir


def test_nothing_is_compiled_after_the_first_epoch_and_validation(finished):
  names, counts, lines, _ = finished
  assert '2 training shapes' in ' '.join(lines)
  assert sum('validation at' in line for line in lines) == 3
  # Two validations, four saves and most of the epochs come after this step.
  assert names[counts[21] :] == []
  assert counts[60] == len(names)
  # The step once a shape, the first before the updates begin.
  assert sum('train_step' in name for name in names) == 2
  assert sum('train_step' in name for name in names[: counts[0]]) == 1
  assert sum('eval_step' in name for name in names) == 2


def test_the_log_says_what_was_compiled(finished):
  names, _, lines, _ = finished
  told = [line for line in lines if re.match(r'\d+ programs compiled', line)]
  total = next(line for line in lines if line.startswith('in all,'))
  numbers = [int(line.split()[0]) for line in told]
  assert total.split()[2] == str(sum(numbers))
  # Counted apart, by the test; what the end of a run needs is in both.
  assert sum(numbers) == len(names)
  assert re.search(r'compiled in \d+\.\d s', total)


def test_a_run_that_is_finished_makes_no_state_and_no_step(
  finished, two_shapes
):
  names, *_, workdir = finished
  assert any('fresh_state' in name for name in names)
  with compiled() as later:
    loop.run(two_shapes, workdir)
  for program in ('fresh_state', 'train_step'):
    assert not any(program in name for name in later)


def test_a_resumed_run_compiles_the_step_once_a_shape(finished, two_shapes):
  longer = changed(two_shapes, {'training.steps': 80})
  with compiled() as later:
    loop.run(longer, finished[-1])
  assert not any('fresh_state' in name for name in later)
  assert sum('train_step' in name for name in later) == 2


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
