"""Sums over the tokens of a text, of many batches."""

import jax.numpy as jnp
import numpy as np
from fused_runs import fused_run, make_run
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fusion_jax.analysis import passes
from fusion_jax.analysis.passes import (
  frequency_bins,
  sums_by_part,
  sums_over_text,
  text_batches,
  token_masks,
)


def test_a_pass_sees_every_pair_once_in_at_most_two_shapes(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(passes, '_TOKENS', 64)
  analysed = fused_run(make_run(), tmp_path)
  batches = list(text_batches(analysed.pairs))
  assert len({batch.source.shape for batch, _ in batches}) == 2
  rows = np.concatenate([rows for _, rows in batches])
  assert sorted(rows) == list(range(len(analysed.pairs)))
  (counted,) = sums_over_text(
    analysed, lambda _, batch: batch.target_lengths.sum(), [{}]
  )
  assert counted == sum(len(pair.target) for pair in analysed.pairs)


def test_what_is_no_token_does_not_count(tmp_path):
  analysed = fused_run(make_run(), tmp_path)

  def spoilt(seen):
    batch = seen.batch
    tokens = token_masks(batch)['encoder']
    return {'ids': ('encoder', jnp.where(tokens, batch.source, jnp.nan))}

  (found,) = sums_by_part(analysed, spoilt).values()
  assert found.values[0] == sum(pair.source.sum() for pair in analysed.pairs)
  assert found.counts[0] == sum(len(pair.source) for pair in analysed.pairs)


def test_bins_of_counts_by_hand():
  # The middles of 10, 5, 4 and 1 of 20 are at 5 / 20, 12.5 / 20, 17 / 20 and
  # 19.5 / 20.
  counts = np.array([0, 1, 10, 4, 5], np.int64)
  assert frequency_bins(counts).tolist() == [-1, 0, 7, 1, 3]
  assert frequency_bins(np.zeros(3, np.int64)).tolist() == [-1] * 3


@given(
  hnp.arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 9)),
  st.integers(1, 12),
)
def test_bins_have_at_most_their_mass_and_one_subword_more(counts, number):
  bins = frequency_bins(counts, number)
  assert ((bins == -1) == (counts == 0)).all()
  share = counts.sum() / number
  for each in range(number):
    own = counts[bins == each]
    assert own.sum() <= share + own.max(initial=0) + 1e-9
  # Rarer subwords are in no later bin.
  seen = bins[np.argsort(-counts, kind='stable')][: (counts > 0).sum()]
  assert (np.diff(seen) <= 0).all()
