"""Shares of corpora, and the slots of an epoch that give them exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusion_jax.config import DataConfig, Direction
from fusion_jax.data import mixing
from fusion_jax.data.mixing import Mixture, apportioned, shares

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=5)


def lengths_of(count, seed=0):
  generator = np.random.default_rng(seed)
  return generator.integers(1, 30, (count, 2), dtype=np.int32)


def shown_by(mixture, epoch):
  """The example in every slot."""
  slots = np.arange(len(mixture.lengths), dtype=np.int32)
  return mixture.examples(epoch, slots)


def corpora_of(examples, sizes):
  """The corpus of each example."""
  return np.searchsorted(np.cumsum(sizes), examples, side='right')


@pytest.mark.parametrize(
  ('sizes', 'weights', 'temperature', 'expected'),
  [
    ([30, 10], [1.0, 1.0], 1.0, [0.75, 0.25]),
    # (900, 100)^(1/2) = 30, 10.
    ([900, 100], [1.0, 1.0], 2.0, [0.75, 0.25]),
    # 30 pairs once and 10 thrice are the same.
    ([30, 10], [1.0, 3.0], 1.0, [0.5, 0.5]),
    ([30, 10], [1.0, 3.0], 0.1, [0.5, 0.5]),
    ([10**6, 1], [1.0, 1.0], 1e9, [0.5, 0.5]),
    ([7], [2.0], 5.0, [1.0]),
  ],
)
def test_shares_by_hand(sizes, weights, temperature, expected):
  found = shares(sizes, weights, temperature)
  np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_the_largest_remainders_are_rounded_up():
  # 10 * (.55, .36, .09) = 5.5, 3.6, .9: floors 5, 3, 0 and two left.
  assert apportioned(10, np.array([0.55, 0.36, 0.09])).tolist() == [5, 4, 1]


@given(SIZES)
def test_shares_in_proportion_are_the_sizes(sizes):
  parts = shares(sizes, [1.0] * len(sizes), 1.0)
  assert apportioned(sum(sizes), parts).tolist() == sizes


def test_a_mixture_by_hand():
  # Six examples and two get four slots each: blocks of 2, 2, 1 and 1 and two
  # rounds. In the order of target, then source, the first corpus is
  # 5 (1, 1), 0 (9, 2), 1 (1, 3), 4 (2, 3), 2 (3, 7), 3 (4, 9).
  lengths = np.array(
    [[9, 2], [1, 3], [3, 7], [4, 9], [2, 3], [1, 1], [5, 5], [6, 8]], np.int32
  )
  mixture = Mixture(lengths, [6, 2], np.array([0.5, 0.5]), seed=1)
  assert mixture.counts.tolist() == [4, 4]
  assert mixture.lengths.tolist() == [
    [3, 7], [4, 9], [9, 2], [2, 3], [5, 5], [6, 8], [5, 5], [6, 8],
  ]  # fmt: skip
  shown = np.array([shown_by(mixture, epoch) for epoch in range(4)])
  for slot, block in enumerate([{2}, {3}, {5, 0}, {1, 4}, {6}, {7}, {6}, {7}]):
    assert set(shown[:2, slot]) == set(shown[2:, slot]) == block


@given(SIZES, st.floats(0.2, 20), st.integers(0, 2**31), st.data())
def test_every_example_once_before_any_comes_again(
  sizes, temperature, seed, data
):
  weights = data.draw(
    st.lists(st.floats(0.1, 10), min_size=len(sizes), max_size=len(sizes))
  )
  parts = shares(sizes, weights, temperature)
  total = sum(sizes)
  lengths = lengths_of(total)
  mixture = Mixture(lengths, sizes, parts, seed)
  # The shares are exact but for rounding, and no corpus is left out.
  exact = total * parts
  assert (np.abs(mixture.counts - exact) < 1 + 1e-9).all()
  assert (mixture.counts >= 1).all()
  assert len(mixture.lengths) == mixture.counts.sum()
  epochs = 4
  seen = np.zeros(total, int)
  for epoch in range(epochs):
    shown = shown_by(mixture, epoch)
    own = np.bincount(corpora_of(shown, sizes), minlength=len(sizes))
    assert own.tolist() == mixture.counts.tolist()
    assert (lengths[shown] <= mixture.lengths).all()
    seen += np.bincount(shown, minlength=total)
  for corpus, (size, count) in enumerate(
    zip(sizes, mixture.counts.tolist(), strict=True)
  ):
    own = seen[corpora_of(np.arange(total), sizes) == corpus]
    whole, part = divmod(count, size)
    least = whole * epochs + (epochs // -(-size // part) if part else 0)
    most = whole * epochs + (-(-epochs // (size // part)) if part else 0)
    assert least <= own.min() <= own.max() <= most


def test_examples_depend_on_seed_and_epoch_alone():
  sizes, parts = [50, 10], np.array([0.5, 0.5])
  first, again, other = (
    Mixture(lengths_of(60), sizes, parts, seed) for seed in (1, 1, 2)
  )
  forwards = [shown_by(first, epoch).tolist() for epoch in range(5)]
  backwards = [shown_by(again, epoch).tolist() for epoch in reversed(range(5))]
  assert forwards == backwards[::-1]
  assert forwards[0] != forwards[1]
  assert forwards[0] != shown_by(other, 0).tolist()
  # Written down when this was made: a resumed run must find the same.
  assert forwards[3][:6] == [49, 12, 16, 45, 37, 5]


def test_the_mixture_of_a_config():
  directions = (
    Direction('de', 'en', ('a.{lang}',)),
    Direction('fr', 'en', ('b.{lang}',), weight=4.0),
  )
  data = DataConfig(directions=directions, mixing_temperature=2.0)
  counts = {'de-en': 36, 'fr-en': 9}
  mixture = mixing.training_mixture(data, counts, lengths_of(45), 0)
  # (36 * 1)^(1/2) = (9 * 4)^(1/2) = 6: half each, of 45.
  assert mixture.counts.tolist() == [23, 22]
  header, first, second = mixing.mixture_table(counts, mixture).splitlines()
  assert header.split()[0] == 'direction'
  assert first.split()[:2] == ['de-en', '36']
  assert second.split()[-1] == '2.44'
