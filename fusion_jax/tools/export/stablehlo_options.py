"""Options of an export as StableHLO, and their flags."""

import argparse
import dataclasses
from typing import Any, Literal

from fusion_jax.bounds import Positive, number
from fusion_jax.config.decoding import DecodingConfig
from fusion_jax.config.flags import add_fields

PLATFORMS = ('cpu', 'cuda', 'rocm', 'tpu')

# Flags that replace a field of the run's DecodingConfig.
_REPLACED = (
  'beam_size',
  'length_penalty',
  'alpha',
  'coverage',
  'patience',
  'min_length_ratio',
  'min_length_extra',
  'max_length_ratio',
  'max_length_extra',
  'forbid_unknown',
  'no_repeat_ngram',
  'search',
  'temperature',
  'top_k',
  'top_p',
  'seed',
)
_OWN = ('shapes', 'weights', 'platforms', 'n_best')

FLAGS = (*_OWN, *_REPLACED)


@dataclasses.dataclass(frozen=True)
class StablehloOptions:
  """Options of an export.

  Attributes:
    shapes: (rows, source length) of each program; () uses some of the shapes of
      decode.py.
    weights: 'beside' puts the weights into a file, as the first argument of
      every program; 'inside' makes them constants of every program.
    platforms: Platforms that the programs can run on.
    n_best: Number of translations per sentence.
    decoding: Fields of DecodingConfig that replace the run's.
  """

  shapes: tuple[tuple[int, int], ...] = ()
  weights: Literal['beside', 'inside'] = 'beside'
  platforms: tuple[str, ...] = ('cpu', 'cuda', 'tpu')
  n_best: int = 1
  decoding: dict[str, Any] = dataclasses.field(default_factory=dict)


def add_stablehlo_flags(parser: argparse.ArgumentParser) -> None:
  """Add the flags; flags that are not given are absent from the namespace."""
  group = parser.add_argument_group(
    'stablehlo', argument_default=argparse.SUPPRESS
  )
  add = group.add_argument
  add('--shapes', type=_shapes, metavar='64x32,1x32', help='ROWSxLENGTH, ...')
  add('--weights', choices=('beside', 'inside'), help='of the programs')
  add('--platforms', type=_platforms, metavar='cpu,cuda,tpu')
  add(
    '--n_best',
    type=number(Positive),
    help='translations of a sentence; default: 1',
  )
  add_fields(group, DecodingConfig, _REPLACED)


def stablehlo_options(flags: argparse.Namespace) -> StablehloOptions:
  """Return the options that parsed flags give."""
  given = {name: getattr(flags, name) for name in FLAGS if name in flags}
  own = {name: given.pop(name) for name in _OWN if name in given}
  return StablehloOptions(**own, decoding=given)


def _shapes(text: str) -> tuple[tuple[int, int], ...]:
  return tuple(dict.fromkeys(map(_shape, text.split(','))))


def _shape(text: str) -> tuple[int, int]:
  numbers = text.split('x')
  plain = all(each.isascii() and each.isdecimal() for each in numbers)
  if len(numbers) != 2 or not plain or '0' in {each[0] for each in numbers}:
    raise argparse.ArgumentTypeError(
      f'must be ROWSxLENGTH with numbers from 1, as 64x32, got {text!r}'
    )
  return int(numbers[0]), int(numbers[1])


def _platforms(text: str) -> tuple[str, ...]:
  names = tuple(dict.fromkeys(text.split(',')))
  unknown = [name for name in names if name not in PLATFORMS]
  if unknown:
    raise argparse.ArgumentTypeError(
      f'{unknown[0]!r} is no platform; must be of {", ".join(PLATFORMS)}'
    )
  if 'cpu' not in names:
    raise argparse.ArgumentTypeError(
      f'{text}: must have cpu too, on which the export is checked'
    )
  return names
