import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import extended_but

from fusion_jax.config import PRESETS
from fusion_jax.layers.positions import segment_mask, segment_positions
from fusion_jax.models.transformer import Transformer, shift_right
from fusion_jax.testing import assert_close, drawn_parameters

_TINY = dataclasses.replace(
  PRESETS['tiny'], width=16, filter=32, encoder_layers=1, decoder_layers=1
)
_START = 2


def _segments(rows, size):
  """Segments of the given lengths side by side."""
  return np.array(
    [
      [n for n, length in enumerate(row, 1) for _ in range(length)]
      + [0] * (size - sum(row))
      for row in rows
    ],
    np.int32,
  )


@settings(max_examples=20)
@given(
  st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=2, max_size=2)
)
def test_positions_count_the_tokens_of_a_segment(rows):
  got = segment_positions(jnp.asarray(_segments(rows, 12)))
  expected = [
    [p for length in row for p in range(length)] + [0] * (12 - sum(row))
    for row in rows
  ]
  assert got.tolist() == expected


def test_mask_keeps_keys_of_the_same_segment():
  mask = segment_mask(jnp.array([[1, 2, 0]]), jnp.array([[1, 1, 2, 0]]))
  assert mask.shape == (1, 1, 3, 4)
  assert mask[0, 0].tolist() == [
    [True, True, False, False],
    [False, False, True, False],
    [False] * 4,
  ]


def test_the_decoder_reads_a_start_symbol_in_every_segment():
  target = jnp.array([[5, 6, 7, 8, 9, 0]])
  positions = jnp.array([[0, 1, 2, 0, 1, 0]])
  assert shift_right(target, _START, positions).tolist() == [[2, 5, 6, 2, 8, 2]]
  assert shift_right(target, _START).tolist() == [[2, 5, 6, 7, 8, 9]]


def _features(model, parameters, *inputs, **segments):
  return model.apply({'params': parameters}, *inputs, **segments).features


@pytest.mark.parametrize(
  'positions', extended_but(['sinusoidal', 'learned'], ['sinusoidal'])
)
def test_one_segment_a_row_is_a_row_without_segments(positions):
  model = Transformer(
    dataclasses.replace(_TINY, positions=positions, max_positions=8),
    20,
    20,
    _START,
  )
  parameters = drawn_parameters(model)
  keys = jax.random.split(jax.random.key(0))
  source = jax.random.randint(keys[0], (2, 7), 4, 20)
  target = jax.random.randint(keys[1], (2, 6), 4, 20)
  lengths = jnp.array([7, 4])
  plain = _features(model, parameters, source, lengths, target)
  packed = _features(
    model,
    parameters,
    source,
    lengths,
    target,
    source_segments=jnp.asarray(_segments([[7], [4]], 7)),
    target_segments=jnp.asarray(_segments([[6], [3]], 6)),
  )
  for row, length in enumerate((6, 3)):
    assert_close(packed[row, :length], plain[row, :length])


@pytest.mark.extended
def test_rows_are_longer_than_the_learned_positions():
  # A row of 8 positions holds two sentences of 4, all that the table has.
  model = Transformer(
    dataclasses.replace(_TINY, positions='learned', max_positions=4),
    20,
    20,
    _START,
  )
  parameters = drawn_parameters(model)
  sentence = jax.random.randint(jax.random.key(0), (1, 4), 4, 20)
  alone = _features(model, parameters, sentence, jnp.array([4]), sentence)
  row = jnp.tile(sentence, (1, 2))
  segments = jnp.asarray(_segments([[4, 4]], 8))
  both = _features(
    model,
    parameters,
    row,
    jnp.array([8]),
    row,
    source_segments=segments,
    target_segments=segments,
  )
  for half in jnp.split(both, 2, axis=1):
    assert_close(half, alone)
