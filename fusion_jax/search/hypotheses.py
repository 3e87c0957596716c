"""Interface between a search and a model, and the results of a search.

Axis letters: B batch, K rows of a sentence (live hypotheses or samples),
N hypotheses returned, T positions, V vocabulary.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

# (tokens [B, K], position, rows [B, K, T], cache) -> (logits [B, K, V], cache).
# A step writes the values of a position into the cache and never moves them:
# position t of hypothesis k was written in row rows[b, k, t], for all t up to
# `position`. The search knows nothing else of the cache.
Step = Callable[
  [Int32[Array, 'B K'], Int32[Array, ''], Int32[Array, 'B K T'], Any],
  tuple[Float32[Array, 'B K V'], Any],
]

# (rows [B, K, T], position, cache) -> [B, K], at most 0: a term that is added
# to the score of a hypothesis that ends after `position`.
CoverageScore = Callable[
  [Int32[Array, 'B K T'], Int32[Array, ''], Any], Float32[Array, 'B K']
]

# (sentences [M], cache) -> what the search of these sentences alone needs.
CompactBatch = Callable[[Int32[Array, ' M'], Any], 'CompactedBatch']


class CompactedBatch(NamedTuple):
  """Step for some of the sentences, and their part of the cache."""

  step: Step
  coverage_score: CoverageScore | None
  cache: Any


@dataclasses.dataclass(frozen=True)
class LengthPenalty:
  """Divisor of the log-probability of a hypothesis.

  Attributes:
    form: 'gnmt' is ((5 + length) / 6)^alpha (Wu et al. 2016, Eq. 14),
      'length' is length^alpha and 'none' is 1.
    alpha: Exponent, at least 0, so that the divisor never decreases with the
      length; the bound that ends the search relies on it.
  """

  form: Literal['gnmt', 'length', 'none'] = 'gnmt'
  alpha: float = 0.6

  def __post_init__(self):
    if self.alpha < 0:
      raise ValueError(f'alpha must be >= 0, got {self.alpha}')

  def divisors(self, max_length: int) -> Float32[np.ndarray, ' lengths']:
    """Return the divisors of lengths 0 to max_length.

    They are a table, because a power computed on the device may round
    differently in arrays of different sizes.
    """
    lengths = np.maximum(np.arange(max_length + 1), 1)
    bases = {
      'gnmt': (5 + lengths) / 6,
      'length': lengths.astype(np.float64),
      'none': np.ones(max_length + 1),
    }
    return (bases[self.form] ** self.alpha).astype(np.float32)


class Hypotheses(NamedTuple):
  """Finished hypotheses of each sentence, best first.

  Attributes:
    tokens: Tokens with the end symbol, then zeros; no start symbol.
    lengths: Number of tokens, the end symbol included; 0 where a sentence has
      fewer hypotheses than there is room for.
    scores: Log-probabilities divided by the length penalty, plus the coverage
      score if there is one; -inf where the length is 0.
    log_probabilities: Sums over the tokens, the end symbol included.
    token_log_probabilities: Log-probability of each token; 0 after the end.
  """

  tokens: Int32[Array, 'B N T']
  lengths: Int32[Array, 'B N']
  scores: Float32[Array, 'B N']
  log_probabilities: Float32[Array, 'B N']
  token_log_probabilities: Float32[Array, 'B N T']


def select(rows: Array, index: Int32[Array, 'B J']) -> Array:
  """Return rows[b, index[b, j]] for all b, j: [B, I, ...] -> [B, J, ...]."""
  return jax.vmap(
    lambda one, chosen: one.at[chosen].get(mode='promise_in_bounds')
  )(rows, index)


def best_first(hypotheses: Hypotheses, count: int) -> Hypotheses:
  """Return the `count` best by score; equal scores keep their order."""
  _, order = jax.lax.top_k(hypotheses.scores, count)
  return jax.tree.map(lambda leaf: select(leaf, order), hypotheses)


def written(
  sequences: Array, position: Int32[Array, ''], values: Array
) -> Array:
  """Return the sequences [B, J, T] with values [B, J] at one position."""
  here = jnp.arange(sequences.shape[-1]) == position
  return jnp.where(here, values[..., None], sequences)
