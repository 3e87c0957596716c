"""Flags that choose a run's checkpoint, its direction and a text."""

import argparse

from fusion_jax.bounds import Natural, number
from fusion_jax.config.flags import (
  add_checkpoint_flags,
  add_direction_flags,
)


def add_run_and_text_flags(parser: argparse.ArgumentParser) -> None:
  """Add the flags of `open_run_with_text`, except --workdir."""
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
