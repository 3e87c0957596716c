"""A translator compiles a program for each shape, and no more."""

import pytest
from compilations import compiled
from copying import LINES, make_tokenizer, random_run

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.translate import Translator


@pytest.mark.extended
@pytest.mark.parametrize(
  # A batch has at most eight rows here, so that on eight devices one program
  # of each source length is enough.
  ('devices', 'programs'),
  [(1, 7), (8, 3)],
)
def test_lines_in_other_windows_compile_nothing(devices, programs):
  options = DecodingConfig(
    beam_size=2, max_source_length=24, batch_tokens=128, max_length_extra=3
  )
  translator = Translator(
    random_run(make_tokenizer(), 0), options, devices=devices
  )
  with compiled() as names:
    shapes = list(translator.warm_up())
  assert len(shapes) == 7
  assert sum('search_batch' in name for name in names) == programs
  with compiled() as names:
    first = list(translator.translate(LINES))
    again = list(translator.translate(LINES * 3))
  assert names == []
  assert again == first * 3
