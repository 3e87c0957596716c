"""Comparison of log-probabilities by CTranslate2 and by the run itself.

Axis letters: B pairs, S source, T target.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float32

from fusion_jax.data.tokenizer import Vocabulary
from fusion_jax.decoding.batches import padded
from fusion_jax.decoding.certify import relative_gaps
from fusion_jax.decoding.compiled import (
  SearchRows,
  SearchSettings,
  search_batch,
)
from fusion_jax.decoding.ensemble import Mixture
from fusion_jax.decoding.model_step import Source
from fusion_jax.decoding.score import (
  TeacherForcedRows,
  teacher_forced_scores,
)
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.search.hypotheses import LengthPenalty

# Source and target ids, including the end symbols.
PairIds = tuple[list[int], list[int]]

# Lengths of the random sentences, including their end symbols.
_LENGTHS = (1, 2, 4, 7, 13, 23, 40, 64)


def largest_difference(run: TrainedModel, folder: Path) -> float:
  """Compare the exported model's log-probabilities of tokens with the run's.

  The pairs are random token sequences of several lengths, and the run's own
  greedy translations of them.
  """
  model = run.model.clone(
    config=dataclasses.replace(run.model.config, compute_dtype='float32')
  )
  run = dataclasses.replace(run, model=model)
  rng = np.random.default_rng(0)
  sources, targets = (
    random_sentences(tokenizer.vocabulary, _lengths(run), rng)
    for tokenizer in (run.source_tokenizer, run.target_tokenizer)
  )
  # Rounded products on a GPU would hide the difference.
  with jax.default_matmul_precision('highest'):
    pairs = list(
      zip(sources * 2, targets + _translations(run, sources), strict=True)
    )
    ours = own_scores(run, pairs)
  theirs = exported_scores(run, folder, pairs)
  gaps = relative_gaps(np.concatenate(theirs), np.concatenate(ours))
  return float(gaps.max())


def own_scores(
  run: TrainedModel, pairs: Sequence[PairIds]
) -> list[Float32[np.ndarray, ' _']]:
  """Compute log p of every target token with the run."""
  vocabulary = run.target_tokenizer.vocabulary
  sources, targets = (list(side) for side in zip(*pairs, strict=True))
  length = max(map(len, sources + targets))
  source = Source(*padded(sources, len(pairs), length, vocabulary.end))
  rows = TeacherForcedRows(
    (source,), *padded(targets, len(pairs), length, vocabulary.end)
  )
  scores, _ = teacher_forced_scores(
    (run.parameters,), rows, models=(run.model,), mixture=Mixture()
  )
  scored = zip(jax.device_get(scores), targets, strict=True)
  return [row[: len(target)] for row, target in scored]


def exported_scores(
  run: TrainedModel, folder: Path, pairs: Sequence[PairIds]
) -> list[Float32[np.ndarray, ' _']]:
  """Compute log p of every target token with CTranslate2 in float32 on CPU."""
  import ctranslate2  # An optional package.

  # With more threads than free cores, the spinning threads make it slow.
  translator = ctranslate2.Translator(
    str(folder), compute_type='float32', intra_threads=1
  )
  # CTranslate2 adds the end symbols.
  sources, targets = (
    [[pieces[token] for token in pair[side][:-1]] for pair in pairs]
    for side, pieces in enumerate(
      (run.source_tokenizer.pieces(), run.target_tokenizer.pieces())
    )
  )
  scored = translator.score_batch(sources, targets, max_input_length=0)
  return [np.asarray(each.log_probs, np.float32) for each in scored]


def _lengths(run: TrainedModel) -> list[int]:
  config = run.config.model
  learned = config.positions == 'learned'
  longest = config.max_positions if learned else max(_LENGTHS)
  return [min(length, longest) for length in _LENGTHS]


def _translations(
  run: TrainedModel, sources: list[list[int]]
) -> list[list[int]]:
  """Translate greedily, up to the length of the longest source."""
  rows, end = len(sources), run.target_tokenizer.vocabulary.end
  longest = max(map(len, sources))
  found = search_batch(
    (run.parameters,),
    SearchRows(
      (Source(*padded(sources, rows, longest, end)),),
      np.full(rows, longest, np.int32),
      np.arange(rows, dtype=np.int32),
    ),
    models=(run.model,),
    settings=SearchSettings(1, 1, end, LengthPenalty('none')),
    max_length=longest,
  )
  tokens, lengths = jax.device_get((found.tokens, found.lengths))
  return [tokens[row, 0, : lengths[row, 0]].tolist() for row in range(rows)]


def random_sentences(
  vocabulary: Vocabulary,
  lengths: Sequence[int] | np.ndarray,
  rng: np.random.Generator,
) -> list[list[int]]:
  """Draw sentences of ordinary tokens that end in the end symbol."""
  special = vocabulary.start, vocabulary.end, vocabulary.unknown
  ordinary = np.setdiff1d(np.arange(vocabulary.size), special)
  return [
    [*rng.choice(ordinary, length - 1).tolist(), vocabulary.end]
    for length in lengths
  ]
