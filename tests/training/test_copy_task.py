"""A model that learns to copy shows that every part is wired up right."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from copying import copies

from fusion_jax.config import (
  PRESETS,
  ExperimentConfig,
  OptimizerConfig,
  TrainingConfig,
)
from fusion_jax.data.batching import Batch
from fusion_jax.models.transformer import Transformer
from fusion_jax.search.beam import LengthPenalty, beam_search
from fusion_jax.training.build import initial_state
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.step import make_train_step, zero_totals

pytestmark = pytest.mark.extended

_START, _END, _SIZE, _LONGEST = 1, 2, 16, 5
_STEPS = 700


def _copies(rows: int, seed: int) -> Batch:
  return copies(rows, seed, _LONGEST, range(3, _SIZE), _END)


def _trained(norm: str):
  config = ExperimentConfig(
    model=dataclasses.replace(
      PRESETS['tiny'],
      norm=norm,
      encoder_layers=1,
      decoder_layers=1,
      dropout=0.0,
      embedding_dropout=0.0,
    ),
    optimizer=OptimizerConfig(schedule='cosine', peak=2e-3, warmup_steps=100),
    training=TrainingConfig(steps=_STEPS, label_smoothing=0.0),
  )
  model = Transformer(config.model, _SIZE, _SIZE, _START)
  optimizer = make_optimizer(config.optimizer, config.model.width, _STEPS)
  step = make_train_step(model, optimizer, config)
  state, totals = initial_state(model, optimizer, 0), zero_totals(1)
  for seed in range(_STEPS):
    state, totals = step(state, totals, _copies(32, seed))
  return model, state.parameters


def test_unseen_sequences_are_copied_exactly():
  model, parameters = _trained('post')
  batch = _copies(100, seed=10_000)

  def apply(*arguments, method):
    return model.apply({'params': parameters}, *arguments, method=method)

  @jax.jit
  def search(source, lengths):
    encoded = apply(source, lengths, method='encode')
    cache, memory = apply(encoded, lengths, 2, 10, method='start_decoding')
    return beam_search(
      lambda tokens, position, rows, cache: apply(
        tokens, position, rows, cache, memory, method='decode_step'
      ),
      cache,
      batch=100,
      beam=2,
      max_length=10,
      max_lengths=jnp.full(100, 10, jnp.int32),
      start_id=_START,
      end_id=_END,
      penalty=LengthPenalty('gnmt', 0.6),
    )

  found = search(batch.source, batch.source_lengths)
  np.testing.assert_array_equal(found.lengths[:, 0], batch.source_lengths)
  kept = np.arange(_LONGEST + 1) < batch.source_lengths[:, None]
  copied = np.asarray(found.tokens)[:, 0, : _LONGEST + 1]
  np.testing.assert_array_equal(
    np.where(kept, copied, 0), np.asarray(batch.source)
  )
