"""Views of trained models: what they have learned, as numbers and figures.

`views.py` is the table of all views. Here are the
flags that choose a text and a run, which are read without JAX.
"""

import argparse
import dataclasses
from typing import Literal

from fusion_jax.bounds import Natural, number
from fusion_jax.config.flags import add_checkpoint_flags, add_direction_flags
from fusion_jax.errors import InputError


@dataclasses.dataclass(frozen=True)
class TextChoice:
  """Choice of a text, by the flags; without `source` the validation text."""

  source: str = ''
  target: str = ''
  lines: int = 0
  tags: str = ''
  tags_side: Literal['source', 'target'] = 'source'

  def __post_init__(self):
    if bool(self.source) != bool(self.target):
      raise InputError('--source and --target: give both, or neither')


def add_run_and_text_flags(parser: argparse.ArgumentParser) -> None:
  """Add the flags of a text, of a checkpoint and of a direction."""
  add = parser.add_argument
  add('--source', default='', help='a text file')
  add('--target', default='', help='its translation')
  add(
    '--lines',
    type=number(Natural),
    default=0,
    help='number of lines, from the first; 0: all',
  )
  add('--tags', default='', help='a CoNLL-U file of the text, for the probes')
  add('--tags_side', choices=('source', 'target'), default='source')
  add_checkpoint_flags(parser)
  add_direction_flags(parser)
