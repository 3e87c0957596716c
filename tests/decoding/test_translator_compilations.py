"""A translator compiles a program for each shape, and no more."""

from compilations import compiled
from copying import LINES, make_tokenizer, random_run

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.translate import Translator


def test_lines_in_other_windows_compile_nothing():
  options = DecodingConfig(
    beam_size=2, max_source_length=24, batch_tokens=128, max_length_extra=3
  )
  translator = Translator(random_run(make_tokenizer(), 0), options)
  with compiled() as names:
    shapes = list(translator.warm_up())
  assert sum('search_batch' in name for name in names) == len(shapes) > 1
  with compiled() as names:
    first = list(translator.translate(LINES))
    again = list(translator.translate(LINES * 3))
  assert names == []
  assert again == first * 3
