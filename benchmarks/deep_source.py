"""Whether a trained run reads its source: its loss with sources exchanged."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.deep_verdict import nll
from fusion_jax.data.batching import Batch, choose_shapes
from fusion_jax.data.pipeline import evaluation_batches
from fusion_jax.data.prepare import prepare
from fusion_jax.models.losses import zero_sums
from fusion_jax.runs.loading import load_run
from fusion_jax.training.evaluate import token_means
from fusion_jax.training.step import batch_loss


def exchanged_nll(workdir: Path) -> float | None:
  """NLL of the validation text, given the sources of other sentences.

  Args:
    workdir: of a run; its last checkpoint is read.

  Returns:
    Nats a target token, or None where it is not finite. As much higher than
    with the right sources as these tell the model.
  """
  run = load_run(workdir, 'last')
  data, chunk = run.config.data, run.config.training.loss_chunk
  split = prepare(data).split('valid')
  shapes = choose_shapes(split.lengths, data.batch, 1, data.filter.max_length)
  sums_of = jax.jit(
    lambda batch: batch_loss(run.model, run.parameters, batch, 0.0, chunk)[0]
  )
  sums = zero_sums()
  for batch in map(exchanged, evaluation_batches(split, shapes)):
    sums = jax.tree.map(jnp.add, sums, sums_of(batch))
  return nll(token_means(sums)['perplexity'])


def exchanged(batch: Batch) -> Batch:
  """Every sentence gets the source of the next; the last that of the first."""
  rows = np.arange(len(batch.source))
  real = np.count_nonzero(batch.target_lengths)
  rows[:real] = np.roll(rows[:real], -1)
  return batch._replace(
    source=batch.source[rows], source_lengths=batch.source_lengths[rows]
  )
