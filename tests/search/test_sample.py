"""Sampling: the distribution, its restrictions, and what decides a draw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fusion_jax.search.constraints import Requirements, TokenRules
from fusion_jax.search.hypotheses import LengthPenalty
from fusion_jax.search.sample import Sampling, restrict, sample

START, END = 0, 1
_P = np.array([0.1, 0.2, 0.3, 0.4])
_LOGITS = jnp.log(jnp.asarray(_P, jnp.float32))


def _sample(numbers, samples=1, limit=3, **changes):
  sampling = Sampling(**changes.pop('sampling', {}))

  @jax.jit
  def run(numbers):
    return sample(
      lambda tokens, position, rows, cache: (
        jnp.broadcast_to(_LOGITS + 5, (*tokens.shape, 4)),
        cache,
      ),
      (),
      samples=samples,
      max_length=limit,
      max_lengths=jnp.full(len(numbers), limit),
      numbers=numbers,
      start_id=START,
      end_id=END,
      penalty=LengthPenalty('none'),
      sampling=sampling,
      **changes,
    )

  return run(jnp.asarray(numbers))


def test_frequencies_are_the_probabilities():
  found = _sample(range(2_000), samples=2)
  first = np.asarray(found.tokens[:, :, 0]).ravel()
  counts = np.bincount(first, minlength=4)
  assert stats.chisquare(counts, 4_000 * _P).pvalue > 1e-3
  # Positions are independent of one another.
  open_first = first != END
  second = np.asarray(found.tokens[:, :, 1]).ravel()[open_first]
  counts = np.bincount(second, minlength=4)
  assert stats.chisquare(counts, open_first.sum() * _P).pvalue > 1e-3


def test_temperature_sharpens():
  found = _sample(range(2_000), sampling={'temperature': 0.5})
  counts = np.bincount(np.asarray(found.tokens[:, 0, 0]), minlength=4)
  sharp = _P**2 / (_P**2).sum()
  assert stats.chisquare(counts, 2_000 * sharp).pvalue > 1e-3


@pytest.mark.parametrize(
  ('sampling', 'kept'),
  [
    ({'top_k': 2}, [2, 3]),
    ({'top_k': 9}, [0, 1, 2, 3]),
    # 0.4, then 0.4 + 0.3 >= 0.6.
    ({'top_p': 0.6}, [2, 3]),
    ({'top_p': 0.39}, [3]),
    ({'top_p': 0.75}, [1, 2, 3]),
    # Of 0.3 and 0.4 the second has 0.57.
    ({'top_k': 2, 'top_p': 0.5}, [3]),
  ],
)
def test_what_is_drawn_from(sampling, kept):
  restricted = restrict(_LOGITS[None], Sampling(**sampling))
  assert np.flatnonzero(np.isfinite(restricted[0])).tolist() == kept
  drawn = _sample(range(300), limit=2, sampling=sampling).tokens[:, 0, 0]
  assert set(np.unique(drawn)) == set(kept)


def test_a_draw_depends_on_seed_and_number_alone():
  together = _sample(range(20), samples=3, limit=6)
  for number in (0, 7, 19):
    alone = _sample([number], samples=3, limit=6)
    for a, b in zip(together, alone, strict=True):
      np.testing.assert_array_equal(a[number], b[0])
  other = _sample(range(20), samples=3, limit=6, sampling={'seed': 1})
  assert not np.array_equal(together.tokens, other.tokens)


def test_scores_are_the_models_own():
  found = _sample(range(10), samples=3, limit=5, sampling={'temperature': 2.0})
  for tokens, lengths, scores in zip(*found[:3], strict=True):
    expected = [
      np.log(_P)[np.asarray(row)[:length]].sum()
      for row, length in zip(tokens, np.asarray(lengths), strict=True)
    ]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    assert (np.diff(scores) <= 0).all()
    for row, length in zip(np.asarray(tokens), lengths, strict=True):
      assert row[length - 1] == END
      assert not row[length:].any()


def test_constraints_hold():
  requirements = Requirements(
    jnp.full(50, 4), jnp.tile(jnp.array([[2, 3]]), (50, 1)), jnp.full(50, 2)
  )
  found = _sample(
    range(50),
    limit=6,
    rules=TokenRules(forbidden=(3,)),
    requirements=requirements,
  )
  assert (found.tokens[:, 0, :2] == jnp.array([2, 3])).all()
  assert (found.lengths >= 4).all()
  assert not (found.tokens[:, 0, 2:] == 3).any()
