"""Comparison of translations by exported programs and by the run."""

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fusion_jax.decoding.batches import padded, target_limit
from fusion_jax.decoding.certify import relative_gaps
from fusion_jax.search.hypotheses import Hypotheses
from fusion_jax.tools.export.agreement import random_sentences
from fusion_jax.tools.export.search_program import SearchProgram, Weights


def largest_difference(
  programs: Sequence[SearchProgram], folder: Path
) -> float:
  """Compare the exported programs' log-probabilities with the run's.

  A full batch of random sentences of all lengths is translated for each shape,
  on the CPU.
  """
  with jax.default_device(jax.local_devices(backend='cpu')[0]):
    loader = runpy.run_path(str(folder / 'load.py'))
    weights = jax.device_put(programs[0].weights())
    differences = [_difference(each, weights, loader) for each in programs]
  # Unlike max(), np.max keeps NaN.
  return float(np.max(differences))


def _difference(
  program: SearchProgram, weights: Weights, loader: dict[str, Any]
) -> float:
  rows, source, _ = program.shape
  sentences = _sentences(program)
  (shape,) = [
    each
    for each in loader['EXPORT']['shapes']
    if (each['rows'], each['source']) == (rows, source)
  ]
  theirs = loader['search'](shape, sentences, range(rows))
  ours = jax.device_get(_own(program, weights, sentences))
  same = all(
    np.array_equal(getattr(ours, name), theirs[name])
    for name in ('tokens', 'lengths')
  )
  if not same:
    return np.inf
  # Rows with fewer hypotheses than requested have -inf in their place.
  found = ours.lengths > 0
  gaps = relative_gaps(
    theirs['log_probabilities'][found], ours.log_probabilities[found]
  )
  return float(gaps.max())


def _own(
  program: SearchProgram, weights: Weights, sentences: list[list[int]]
) -> Hypotheses:
  rows, source, _ = program.shape
  end = program.run.source_tokenizer.vocabulary.end
  ids, lengths = padded(sentences, rows, source, end)
  limits = [
    target_limit(len(each), program.options, program.run.longest)
    for each in sentences
  ]
  numbers = np.arange(rows, dtype=np.int32)
  return program.search(
    weights, ids, lengths, np.asarray(limits, np.int32), numbers
  )


def _sentences(program: SearchProgram) -> list[list[int]]:
  """Draw a full batch of sentences of all lengths."""
  rows, source, _ = program.shape
  lengths = np.linspace(source, 1, rows).round().astype(int)
  vocabulary = program.run.source_tokenizer.vocabulary
  return random_sentences(vocabulary, lengths, np.random.default_rng(0))
