"""Whether a run has learnt: its losses against what needs no training.

And whether it reads its source: its loss with the sources exchanged.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fusion_jax.data.batching import Batch, choose_shapes
from fusion_jax.data.pipeline import evaluation_batches
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.models.losses import zero_sums
from fusion_jax.runs.loading import CheckpointSelection, load_run
from fusion_jax.training.evaluate import token_means
from fusion_jax.training.gradients import batch_loss

# Nats a target token.
MARGIN = 0.1
RISE = 0.5
READ = 0.05
RULE = (
  'not finite: a loss is not finite at the end; no better than unigrams: the '
  f'validation NLL is not {MARGIN} below that of the unigram distribution; '
  f'rose again: the training NLL ends more than {RISE} above its minimum; '
  f'source not read: the sources of other sentences cost less than {READ}'
)


def verdict(run: Mapping[str, Any], unigram: float) -> str:
  """How a training went, by the first case of `RULE` that holds."""
  train, valid, other = run['train'], run['valid'], run['other_source']
  if not train or None in (train[-1], valid, other):
    return 'not finite'
  if valid > unigram - MARGIN:
    return 'no better than unigrams'
  if train[-1] > min(each for each in train if each is not None) + RISE:
    return 'rose again'
  if other < valid + READ:
    return 'source not read'
  return 'trains'


def nll(perplexity: float | None) -> float | None:
  """Nats, or None where the perplexity is not finite or None."""
  if perplexity is None or not math.isfinite(perplexity):
    return None
  return math.log(perplexity)


def unigram_nll(corpus: PreparedCorpus) -> dict[str, float]:
  """NLL of the target tokens by their frequencies in the training text."""
  counts = {name: _counts(corpus, name) for name in ('train', 'valid')}
  log_p = log_unigram(counts['train'])
  return {
    name: float(-(own * log_p).sum() / own.sum())
    for name, own in counts.items()
  }


def log_unigram(counts: Float[np.ndarray, ' V']) -> Float[np.ndarray, ' V']:
  """Log frequencies, one added to every count (Laplace)."""
  return np.log(counts + 1) - math.log(counts.sum() + len(counts))


def _counts(corpus: PreparedCorpus, name: str) -> Float[np.ndarray, ' V']:
  split = corpus.split(name)
  ids = np.concatenate([split[i].target for i in range(len(split))])
  size = corpus.target_tokenizer.vocabulary.size
  return np.bincount(ids, minlength=size).astype(np.float64)


def exchanged_nll(workdir: Path) -> float | None:
  """NLL of the validation text, given the sources of other sentences."""
  run = load_run(workdir, CheckpointSelection('last'))
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
