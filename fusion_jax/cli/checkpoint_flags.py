"""Flags that choose the checkpoint and the direction of a run to load."""

import argparse
import re

from fusion_jax.bounds import Positive, number


def add_checkpoint_flags(parser: argparse.ArgumentParser) -> None:
  """Add --step, --average, --average_of and --parameters to a parser."""
  parser.add_argument(
    '--step', type=_step, default='best', help="a step, 'best' or 'last'"
  )
  parser.add_argument(
    '--average',
    type=number(Positive),
    default=1,
    help='number of checkpoints whose mean is loaded',
  )
  parser.add_argument(
    '--average_of',
    choices=('last', 'best'),
    default='last',
    help='which ones: the last or the best, up to --step',
  )
  parser.add_argument(
    '--parameters',
    choices=('last', 'ema'),
    help='of a checkpoint: those after its last update or their moving '
    'average; default: the average if training.ema made one',
  )


def add_direction_flags(parser: argparse.ArgumentParser) -> None:
  """Add --source_language and --target_language to a parser."""
  for side in ('source', 'target'):
    parser.add_argument(
      f'--{side}_language',
      default='',
      help='needed where the run has several directions',
    )


def _step(text: str) -> int | str:
  if text in ('best', 'last'):
    return text
  if not re.fullmatch('[0-9]{1,10}', text):
    raise argparse.ArgumentTypeError(
      f"must be a step, 'best' or 'last', got {text!r}"
    )
  return int(text)
