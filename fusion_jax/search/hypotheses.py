"""What a search asks of a model, and what it gives.

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
# A step writes what it keeps of a position into the cache and never moves it:
# of hypothesis k, position t was written in row rows[b, k, t], for all t up to
# `position`. The search knows nothing else of the cache.
Step = Callable[
  [Int32[Array, 'B K'], Int32[Array, ''], Int32[Array, 'B K T'], Any],
  tuple[Float32[Array, 'B K V'], Any],
]

# (rows [B, K, T], position, cache) -> [B, K], at most 0: is added to the score
# of a hypothesis that ends after `position`.
CoverageScore = Callable[
  [Int32[Array, 'B K T'], Int32[Array, ''], Any], Float32[Array, 'B K']
]

# (sentences [M], cache) -> what is needed to go on with these alone.
CompactBatch = Callable[[Int32[Array, ' M'], Any], 'Narrowed']


class Narrowed(NamedTuple):
  """A step for some of the sentences, and their part of the cache."""

  step: Step
  coverage_score: CoverageScore | None
  cache: Any


@dataclasses.dataclass(frozen=True)
class LengthPenalty:
  """What the log-probability of a hypothesis is divided by.

  Attributes:
    form: 'gnmt': ((5 + length) / 6)^alpha (Wu et al. 2016, Eq. 14).
      'length': length^alpha. 'none': 1.
    alpha: at least 0, so that the divisor does not fall as the length grows;
      the bound that ends the search rests on it.
  """

  form: Literal['gnmt', 'length', 'none'] = 'gnmt'
  alpha: float = 0.6

  def __post_init__(self):
    if self.alpha < 0:
      raise ValueError(f'alpha must be >= 0, got {self.alpha}')

  def divisors(self, max_length: int) -> Float32[np.ndarray, ' lengths']:
    """The divisors of lengths 0 to max_length.

    A table, because a power computed on the device may round differently in
    arrays of different sizes.
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

  tokens: end in the end symbol, followed by zeros; no start symbol.
  lengths: tokens, the end symbol included; 0 where a sentence has fewer
    hypotheses than there is room for.
  scores: log_probabilities divided by the length penalty, with the coverage
    score if there is any; -inf where length is 0.
  log_probabilities: sums over the tokens, the end symbol included.
  token_log_probabilities: of each token; 0 after the end.
  """

  tokens: Int32[Array, 'B N T']
  lengths: Int32[Array, 'B N']
  scores: Float32[Array, 'B N']
  log_probabilities: Float32[Array, 'B N']
  token_log_probabilities: Float32[Array, 'B N T']


def select(rows: Array, index: Int32[Array, 'B J']) -> Array:
  """rows[b, index[b, j]] for every b and j: [B, I, ...] -> [B, J, ...]."""
  return jax.vmap(
    lambda one, chosen: one.at[chosen].get(mode='promise_in_bounds')
  )(rows, index)


def best_first(hypotheses: Hypotheses, count: int) -> Hypotheses:
  """The `count` best by score; equal scores keep their order."""
  _, order = jax.lax.top_k(hypotheses.scores, count)
  return jax.tree.map(lambda leaf: select(leaf, order), hypotheses)


def written(
  sequences: Array, position: Int32[Array, ''], values: Array
) -> Array:
  """The sequences [B, J, T] with values [B, J] at one position."""
  here = jnp.arange(sequences.shape[-1]) == position
  return jnp.where(here, values[..., None], sequences)
