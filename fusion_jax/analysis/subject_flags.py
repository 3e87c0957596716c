"""The flags that choose a run's checkpoint, its direction and a text."""

import argparse

from fusion_jax.checkpoint_flags import (
  add_checkpoint_flags,
  add_direction_flags,
)
from fusion_jax.errors import InputError


def add_subject_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that `looking.open_subject` reads, but for --workdir."""
  add = parser.add_argument
  add('--source', default='', help='a text file')
  add('--target', default='', help='its translation')
  add('--lines', type=int, default=0, help='at most so many, the first; 0: all')
  add('--tags', default='', help='a CoNLL-U file of the text, for the probes')
  add('--tags_side', choices=('source', 'target'), default='source')
  add_checkpoint_flags(parser)
  add_direction_flags(parser)


def check_subject_flags(arguments: argparse.Namespace) -> None:
  """Refuses what the parser lets through.

  Raises:
    InputError: less than no lines.
  """
  if arguments.lines < 0:
    raise InputError(f'--lines={arguments.lines}: must be 0 (all) or more')
