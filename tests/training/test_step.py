"""The training step: gradients, batches that are skipped, programs, bytes."""

import dataclasses
import functools
import logging
import os
import signal
import threading
import time

import chex
import jax
import numpy as np
import optax
import pytest
from tiers import extended_but

from benchmarks.hlo_traffic import traffic
from fusion_jax.config import (
  PRESETS,
  ExperimentConfig,
  OptimizerConfig,
  TrainingConfig,
)
from fusion_jax.config.presets import changed
from fusion_jax.data.batching import Batch, Shape, assemble
from fusion_jax.data.encoding import Example
from fusion_jax.models.transformer import Transformer
from fusion_jax.parallel.mesh import by_rows, data_mesh, replicated
from fusion_jax.testing import assert_close
from fusion_jax.tools.aot.programs import training_program
from fusion_jax.training.build import initial_state
from fusion_jax.training.loop import stop_on_signals
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.step import (
  StepPrograms,
  make_eval_step,
  make_train_step,
  zero_totals,
)

_MODEL = dataclasses.replace(
  PRESETS['tiny'], width=16, filter=32, encoder_layers=1, decoder_layers=1
)
_CONFIG = ExperimentConfig(
  model=_MODEL,
  # The large epsilon keeps Adam from blowing up rounding where a gradient is
  # zero but for rounding, as that of a bias of attention keys is.
  optimizer=OptimizerConfig(
    schedule='inverse_sqrt', peak=1e-1, warmup_steps=1, epsilon=1e-2
  ),
  training=TrainingConfig(loss_chunk=8),
)


def _batch(rows=16, source=5, target=6, seed=0) -> Batch:
  rng = np.random.default_rng(seed)
  return Batch(
    rng.integers(4, 30, (rows, source), dtype=np.int32),
    rng.integers(4, 30, (rows, target), dtype=np.int32),
    rng.integers(1, source + 1, rows, dtype=np.int32),
    rng.integers(0, target + 1, rows, dtype=np.int32),
  )


@functools.cache
def _compiled(config, devices):
  model = Transformer(config.model, 30, 30, 2)
  optimizer = make_optimizer(config.optimizer, config.model.width)
  mesh = data_mesh(jax.devices()[:devices])
  place = replicated(mesh)
  initial = jax.jit(
    lambda: initial_state(model, optimizer, 0), out_shardings=place
  )
  return make_train_step(model, optimizer, config, mesh), initial, mesh


def _build(config=_CONFIG, devices=1):
  step, initial, mesh = _compiled(config, devices)
  totals = jax.device_put(zero_totals(1), replicated(mesh))
  return step, initial(), totals, mesh


def _run(config=_CONFIG, devices=1, batches=None):
  step, state, totals, mesh = _build(config, devices)
  with jax.set_mesh(mesh):
    for batch in batches or [_batch(seed=i) for i in range(2)]:
      batch = jax.device_put(batch, by_rows(mesh))
      state, totals = step(state, totals, batch)
  return jax.device_get((state, totals))


def _without_dropout(config=_CONFIG, **optimizer):
  return dataclasses.replace(
    config,
    model=dataclasses.replace(config.model, dropout=0.0, embedding_dropout=0.0),
    optimizer=dataclasses.replace(config.optimizer, **optimizer),
  )


def _assert_same(a, b, tolerance):
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(
      x, y, rtol=tolerance, atol=tolerance
    ),
    a,
    b,
  )


def test_one_and_eight_devices_agree_with_dropout():
  one, eight = _run(devices=1), _run(devices=8)
  np.testing.assert_allclose(one[1].sums.loss, eight[1].sums.loss, rtol=1e-5)
  assert one[1].sums.tokens == eight[1].sums.tokens
  _assert_same(one[0].parameters, eight[0].parameters, 1e-4)


@pytest.mark.parametrize('parts', extended_but([2, 4], [2]))
def test_accumulation_changes_nothing_but_rounding(parts):
  whole = _run(_without_dropout(clip_norm=0.5))
  split = _run(_without_dropout(clip_norm=0.5, accumulation=parts))
  _assert_same(whole[1], split[1], 1e-4)
  _assert_same(whole[0].parameters, split[0].parameters, 1e-4)


def test_the_gradient_is_that_of_the_mean_over_tokens():
  batch = _batch()
  padded = jax.tree.map(
    lambda x: np.pad(x, [(0, 16)] + [(0, 3)] * (x.ndim - 1)), batch
  )
  plain = _run(_without_dropout(), batches=[batch])
  more = _run(_without_dropout(), batches=[padded])
  assert plain[1].sums.tokens == more[1].sums.tokens
  np.testing.assert_allclose(plain[1].sums.loss, more[1].sums.loss, rtol=1e-5)
  np.testing.assert_allclose(
    plain[1].gradient_norm, more[1].gradient_norm, rtol=1e-4
  )


def _pairs() -> list[Example]:
  rng = np.random.default_rng(0)
  return [
    Example(*(rng.integers(4, 30, size, dtype=np.int32) for size in sizes))
    for sizes in rng.integers(1, [6, 7], (32, 2))
  ]


@pytest.mark.extended
def test_packed_rows_train_like_rows_of_one_sentence():
  pairs = _pairs()
  alone = _run(_without_dropout(), batches=[assemble(pairs, Shape(32, 5, 6))])
  # Two pairs a row, the rows in two parts on eight devices.
  packed = _run(
    _without_dropout(accumulation=2),
    8,
    [assemble(pairs, Shape(16, 10, 12), np.full(16, 2))],
  )
  _assert_same(alone[1], packed[1], 1e-4)
  _assert_same(alone[0].parameters, packed[0].parameters, 1e-4)


@pytest.mark.parametrize('devices', extended_but([1, 8], [8]))
def test_packed_rows_train_the_same_with_the_kernel_of_attention(devices):
  pairs = _pairs()
  batches = [assemble(pairs, Shape(16, 10, 12), np.full(16, 2))] * 2
  config = _without_dropout()
  plain = _run(config, devices, batches)
  kernel = changed(config, {'model.attention_implementation': 'xla'})
  found = _run(kernel, devices, batches)
  _assert_same(found[1], plain[1], 1e-5)
  _assert_same(found[0].parameters, plain[0].parameters, 1e-4)


@pytest.mark.extended
def test_the_same_step_draws_the_same_dropout():
  first, second = _run(), _run()
  chex.assert_trees_all_equal(first, second)
  other = dataclasses.replace(
    _CONFIG, training=dataclasses.replace(_CONFIG.training, seed=1)
  )
  assert _run(other)[1].sums.loss != first[1].sums.loss


def test_a_batch_that_overflows_is_skipped_and_counted():
  # Only the bad batches have source token 29, whose row of a table of its own
  # is 3e38: times sqrt(D) = 4 that is inf.
  config = changed(_CONFIG, {'model.tied_embeddings': 'target_output'})
  step, state, totals, mesh = _build(config)
  huge = state.parameters['source_embedding'].at[29].set(3e38)
  state.parameters['source_embedding'] = huge
  fine, bad = _batch(), _batch()
  fine.source[fine.source == 29] = 4
  bad.source[:, 0] = 29
  bad.source_lengths[:] = 5
  with jax.set_mesh(mesh):
    seen = []
    for batch in (fine, bad, bad, fine):
      batch = jax.device_put(batch, by_rows(mesh))
      state, totals = step(state, totals, batch)
      seen.append(jax.device_get((state, totals)))
  (first, one), (second, two), (third, three), (last, four) = seen
  chex.assert_trees_all_equal(first[1:], second[1:], third[1:])
  assert [int(s.step) for s, _ in seen] == [1, 2, 3, 4]
  assert not np.array_equal(
    last.parameters['target_embedding'], third.parameters['target_embedding']
  )
  chex.assert_trees_all_equal(one.sums, two.sums, three.sums)
  assert four.sums.tokens == 2 * one.sums.tokens
  counts = [
    tuple(map(int, (t.steps, t.skipped, t.in_a_row, t.longest)))
    for _, t in seen
  ]
  assert counts == [(1, 0, 0, 0), (1, 1, 1, 1), (1, 2, 2, 2), (2, 2, 0, 2)]
  assert [int(t.first_bad_step) for _, t in seen] == [0, 2, 2, 2]


def test_no_copy_and_no_compilation_after_the_first_batch_of_a_shape():
  step, state, totals, mesh = _build(_without_dropout(warmup_steps=2))
  shapes = [(16, 5, 6), (8, 9, 7)]
  batches = [
    jax.device_put(_batch(*shapes[i % 2], seed=i), by_rows(mesh))
    for i in range(6)
  ]
  with jax.set_mesh(mesh):
    for batch in batches[:2]:
      state, totals = step(state, totals, batch)
    with jax.transfer_guard('disallow'):
      for batch in batches[2:]:
        state, totals = step(state, totals, batch)
  assert step._cache_size() == 2
  assert int(totals.steps) == 6


def test_parameters_and_totals_are_donated():
  step, state, totals, mesh = _build()
  with jax.set_mesh(mesh):
    step(state, totals, jax.device_put(_batch(), by_rows(mesh)))
  assert all(x.is_deleted() for x in jax.tree.leaves(state.parameters))
  assert all(x.is_deleted() for x in jax.tree.leaves(totals))


def test_validation_adds_up_and_uses_no_smoothing():
  model = Transformer(_MODEL, 30, 30, 2)
  state = initial_state(model, optax.sgd(0.1), 0)
  evaluate = make_eval_step(model, 8)
  batch = _batch()

  def zero():
    return jax.tree.map(lambda x: x[None], zero_totals(1).sums)

  once = evaluate(state.parameters, zero(), batch)
  again = evaluate(state.parameters, zero(), batch)
  twice = evaluate(state.parameters, again, batch)
  assert int(twice.tokens[0]) == 2 * batch.target_lengths.sum()
  assert_close(once.loss, once.negative_log_likelihood)
  assert_close(2 * once.loss, twice.loss)


def test_bfloat16_training_keeps_float32_parameters():
  config = dataclasses.replace(
    _CONFIG, model=dataclasses.replace(_MODEL, compute_dtype='bfloat16')
  )
  state, totals = _run(config)
  assert np.isfinite(totals.sums.loss)
  assert {x.dtype for x in jax.tree.leaves(state.parameters)} == {
    np.dtype('float32')
  }
  exact = _run()[1].sums.loss
  np.testing.assert_allclose(totals.sums.loss, exact, rtol=0.02)


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


# For the norm XLA on a CPU reads each gradient, writes its square and reads it.
_NORM = 3
# Each moment is read with the gradient and written; then the parameter is read
# with both moments and written.
_ADAM = 3 + 3 + 4
# The average is read with the parameter and written.
_AVERAGE = 3


def _optimizer_bytes(ema: float) -> float:
  """Bytes of the optimizer in one step, over those of the parameters."""
  model = dataclasses.replace(PRESETS['tiny'], width=64, filter=256)
  config = ExperimentConfig(model=model, training=TrainingConfig(ema=ema))
  program = training_program(
    config, Transformer(model, 256, 256, 1), Shape(2, 4, 4), jax.devices()[:1]
  )
  text = program.traced.lower().compile().as_text()
  moved = sum(x.moved for x in traffic(text) if x.part == 'optimizer')
  return moved / (4 * program.parameters)


@pytest.mark.extended
@pytest.mark.parametrize(
  ('ema', 'passes'), [(0.0, _NORM + _ADAM), (0.99, _NORM + _ADAM + _AVERAGE)]
)
def test_an_update_passes_over_the_state_no_more_than_it_must(ema, passes):
  assert _optimizer_bytes(ema) < 1.02 * passes
