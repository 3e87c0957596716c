"""Whether a run has learnt: its losses against what needs no training."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from fusion_jax.data.prepared import PreparedCorpus

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
  """How a training went, by the first case of `RULE` that holds.

  Args:
    run: 'train': NLL of the training text at every log line; 'valid' and
      'other_source': of the validation text at the end, with the sources of
      its sentences and with those of others. None: not finite.
    unigram: NLL of the unigram distribution on the validation text.

  Returns:
    'trains', or how it failed to.
  """
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
  """NLL of the target tokens by their frequencies in the training text.

  Args:
    corpus: has the splits 'train' and 'valid'.

  Returns:
    For both splits nats a target token, end symbols included. That of 'train'
    is the entropy of the distribution, up to its smoothing.
  """
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
