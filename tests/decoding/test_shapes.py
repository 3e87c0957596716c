"""The set of shapes and how sentences fill it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.shapes import (
  DecodeShape,
  PlannedBatch,
  decode_shapes,
  plan_batches,
  shard_batches,
  target_limit,
)


def test_shapes_worked_out_by_hand():
  # 200 slots, beam 2: 200 / 16 = 12 rows of 8, 6 of 16, 5 of 20; powers of
  # two below are 8, 4, 4. Targets: ceil(1.5 * source) + 1.
  options = DecodingConfig(
    beam_size=2,
    max_length_ratio=1.5,
    max_length_extra=1,
    max_source_length=20,
    batch_tokens=200,
  )
  assert decode_shapes(options) == (
    DecodeShape(1, 8, 13),
    DecodeShape(2, 8, 13),
    DecodeShape(8, 8, 13),
    DecodeShape(1, 16, 25),
    DecodeShape(4, 16, 25),
    DecodeShape(1, 20, 31),
    DecodeShape(4, 20, 31),
  )


def test_source_lengths_of_the_defaults():
  lengths = sorted({shape.source for shape in decode_shapes(DecodingConfig())})
  assert lengths == [8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
  short = decode_shapes(DecodingConfig(max_source_length=5))
  assert {shape.source for shape in short} == {5}


def test_a_batch_has_a_row_even_where_there_are_no_slots():
  options = DecodingConfig(batch_tokens=1, max_source_length=100)
  assert {shape.rows for shape in decode_shapes(options)} == {1}


def test_target_limit():
  options = DecodingConfig(max_length_ratio=1.1, max_length_extra=2)
  # 1.1 * 10 is 11.000000000000002 in floating point; 1.1 * 11 = 12.1.
  assert target_limit(10, options) == 13
  assert target_limit(11, options) == 15
  assert target_limit(11, options, longest=14) == 14


@settings(max_examples=50)
@given(
  st.lists(st.integers(1, 40), max_size=80),
  st.integers(1, 400),
  st.integers(1, 5),
)
def test_every_sentence_is_in_one_batch_that_holds_it(lengths, tokens, beam):
  options = DecodingConfig(
    max_source_length=40, batch_tokens=tokens, beam_size=beam
  )
  shapes = decode_shapes(options)
  batches = list(plan_batches(lengths, shapes))
  planned = [i for batch in batches for i in batch.sentences]
  assert sorted(planned) == list(range(len(lengths)))
  assert [lengths[i] for i in planned] == sorted(lengths, reverse=True)
  for batch in batches:
    assert batch.shape in shapes
    assert len(batch.sentences) <= batch.shape.rows
    assert max(lengths[i] for i in batch.sentences) <= batch.shape.source


def _batch(source, sentence):
  return PlannedBatch(DecodeShape(2, source, 9), [sentence])


def test_batches_dealt_to_three_processes():
  batches = [_batch(8, i) for i in range(4)] + [_batch(4, 4), _batch(4, 5)]
  shares = [list(shard_batches(batches, 3, process)) for process in range(3)]
  assert [[batch.sentences for batch in share] for share in shares] == [
    [[0], [3], [4]],
    [[1], [], [5]],
    [[2], [], []],
  ]


@settings(max_examples=50)
@given(st.lists(st.integers(1, 40), max_size=80), st.integers(1, 5))
def test_processes_have_the_same_shapes_and_together_every_batch(
  lengths, processes
):
  options = DecodingConfig(max_source_length=40, batch_tokens=80, beam_size=1)
  batches = list(plan_batches(lengths, decode_shapes(options)))
  shares = [
    list(shard_batches(batches, processes, process))
    for process in range(processes)
  ]
  for together in zip(*shares, strict=True):
    assert len({batch.shape for batch in together}) == 1
    assert together[0].sentences
  found = [batch for share in shares for batch in share if batch.sentences]
  assert sorted(found) == sorted(batches)
