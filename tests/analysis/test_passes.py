"""Means over the tokens of a text, of many batches and of any precision."""

import jax.numpy as jnp
import numpy as np
import pytest
from fused_runs import SOURCES, TARGETS, fused_run, make_run
from hypothesis import given
from hypothesis import strategies as st

from fusion_jax.analysis.passes import (
  text_batches,
  text_shapes,
  token_masks,
  token_sum,
)
from fusion_jax.analysis.sown_weights import layer_weights
from fusion_jax.config.fusion import SideConfig
from fusion_jax.data.batching import Batch
from fusion_jax.testing import assert_close

DYNAMIC = SideConfig(fusion='dynamic_combination')


@pytest.fixture(scope='module')
def once(tmp_path_factory):
  """What is found of a text in float32."""
  analysed = fused_run(make_run(encoder=DYNAMIC), tmp_path_factory.mktemp('a'))
  return layer_weights(analysed)['encoder']


@pytest.mark.extended
def test_a_text_of_many_batches_has_the_means_of_its_parts(once, tmp_path):
  copies = 60
  run = make_run(encoder=DYNAMIC)
  text = SOURCES * copies, TARGETS * copies
  analysed = fused_run(run, tmp_path, *text)
  pairs = analysed.pairs
  assert len(list(text_batches(pairs, text_shapes(pairs)))) > 2
  found = layer_weights(analysed)['encoder']
  assert found['positions'] == copies * once['positions']
  for name in ('mean', 'deviation'):
    assert_close(np.array(found[name]), np.array(once[name]), units=128)


def test_bfloat16_is_summed_in_float32(once, tmp_path):
  run = make_run(encoder=DYNAMIC, compute_dtype='bfloat16')
  found = layer_weights(fused_run(run, tmp_path))['encoder']
  assert found['positions'] == once['positions']
  for name in ('mean', 'deviation'):
    # Two or three decimals of a bfloat16.
    np.testing.assert_allclose(found[name], once[name], rtol=0.05, atol=0.02)


def test_masks_keep_the_tokens_of_each_side():
  source, target = jnp.ones((2, 3), jnp.int32), jnp.ones((2, 2), jnp.int32)
  masks = token_masks(
    Batch(source, target, jnp.array([3, 0]), jnp.array([1, 2]))
  )
  assert masks['encoder'].tolist() == [[True] * 3, [False] * 3]
  assert masks['decoder'].tolist() == [[True, False], [True, True]]


@given(st.integers(0, 2**16))
def test_what_is_no_token_does_not_count(seed):
  generator = np.random.default_rng(seed)
  values = generator.normal(size=(2, 3, 4)).astype(np.float32)
  tokens = generator.random((2, 3)) < 0.5
  spoilt = np.where(tokens[..., None], values, np.nan)
  found = token_sum(jnp.asarray(spoilt), jnp.asarray(tokens))
  assert_close(found, values[tokens].sum(0))
