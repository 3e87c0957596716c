"""Comparison of exported models with their runs.

Axis letters: B pairs, S source, T target.
"""

import dataclasses
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float32

from fusion_jax.data.tokenizer import Vocabulary
from fusion_jax.decoding.batches import padded, target_limit
from fusion_jax.decoding.certify import relative_gaps
from fusion_jax.decoding.ensemble import Mixture
from fusion_jax.decoding.model_step import Source
from fusion_jax.decoding.score import TeacherForcedRows, teacher_forced_scores
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.search.hypotheses import Hypotheses
from fusion_jax.tools.export.search_program import SearchProgram, Weights

# Source and target ids, including the end symbols.
PairIds = tuple[list[int], list[int]]

# Lengths of the random sentences, including their end symbols.
_LENGTHS = (1, 2, 4, 7, 13, 23, 40, 64)


def _random_sentences(
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


def difference_of_ctranslate2(run: TrainedModel, folder: Path) -> float:
  """Compare log-probabilities of random tokens by the model and by its run."""
  model = run.model.clone(
    config=dataclasses.replace(run.model.config, compute_dtype='float32')
  )
  run = dataclasses.replace(run, model=model)
  lengths = [min(n, run.longest or max(_LENGTHS)) for n in _LENGTHS]
  rng = np.random.default_rng(0)
  sources, targets = (
    _random_sentences(tokenizer.vocabulary, lengths, rng)
    for tokenizer in (run.source_tokenizer, run.target_tokenizer)
  )
  pairs = list(zip(sources, targets, strict=True))
  # Rounded products on a GPU would hide the difference.
  with jax.default_matmul_precision('highest'):
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
  return [np.asarray(result.log_probs, np.float32) for result in scored]


def difference_of_programs(
  programs: Sequence[SearchProgram], folder: Path
) -> float:
  """Compare translations of random batches by the programs and by their run."""
  with jax.default_device(jax.local_devices(backend='cpu')[0]):
    loader = runpy.run_path(str(folder / 'load.py'))
    weights = jax.device_put(programs[0].weights())
    differences = [_difference(p, weights, loader) for p in programs]
  # Unlike max(), np.max keeps NaN.
  return float(np.max(differences))


def _difference(
  program: SearchProgram, weights: Weights, loader: dict[str, Any]
) -> float:
  rows, source, _ = program.shape
  lengths = np.linspace(source, 1, rows).round().astype(int)
  vocabulary = program.run.source_tokenizer.vocabulary
  rng = np.random.default_rng(0)
  sentences = _random_sentences(vocabulary, lengths, rng)
  (shape,) = [
    shape
    for shape in loader['EXPORT']['shapes']
    if (shape['rows'], shape['source']) == (rows, source)
  ]
  theirs = loader['search'](shape, sentences, range(rows))
  ours = jax.device_get(_searched(program, weights, sentences))
  same = all(
    np.array_equal(getattr(ours, name), theirs[name])
    for name in ('tokens', 'lengths')
  )
  if not same:
    return np.inf
  # Rows with fewer hypotheses than requested have -inf in their place.
  made = ours.lengths > 0
  gaps = relative_gaps(
    theirs['log_probabilities'][made], ours.log_probabilities[made]
  )
  return float(gaps.max())


def _searched(
  program: SearchProgram, weights: Weights, sentences: list[list[int]]
) -> Hypotheses:
  rows, source, _ = program.shape
  end = program.run.source_tokenizer.vocabulary.end
  ids, lengths = padded(sentences, rows, source, end)
  limits = [
    target_limit(len(sentence), program.options, program.run.longest)
    for sentence in sentences
  ]
  numbers = np.arange(rows, dtype=np.int32)
  return program.search(
    weights, ids, lengths, np.asarray(limits, np.int32), numbers
  )
