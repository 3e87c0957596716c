"""Scenarios of batching lines for the search; none may change an answer.

Batches of other sizes give a sentence other neighbours, another row and
another shape, and so does another order of the lines. The longest shape pads
the source, several devices share the rows, and the search may keep fewer or
more of its hypotheses.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.ensemble import Ensemble
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.runs.loading import TrainedModel

Order = Literal['given', 'reversed', 'shuffled']

# The n best translations of every line, in the order of the lines.
Answers = list[list[Translation]]

_SHUFFLE_SEED = 0


@dataclasses.dataclass(frozen=True)
class Scenario:
  """One scenario of translating the lines; the defaults are those of decode.py.

  Attributes:
    name: Name of the scenario in the report.
    batch_tokens: Slots of a batch; 0 means those of the options.
    order: Order of the lines.
    longest_shape: Whether every source is padded to the longest shape.
    devices: Number of devices that share the rows, from the first; 0 means
      all.
    n_best: Number of hypotheses to keep; 0 means as many as in the reference.
    skipped: Reason why nothing is translated in it; '' if something is.
  """

  name: str
  batch_tokens: int = 0
  order: Order = 'given'
  longest_shape: bool = False
  devices: int = 0
  n_best: int = 0
  skipped: str = ''


REFERENCE = Scenario('default')


def all_scenarios(
  options: DecodingConfig, n_best: int, source_tokens: int, devices: int
) -> tuple[Scenario, ...]:
  """Return every scenario that differs from the reference."""
  beam = n_best if options.search == 'sample' else options.beam_size
  slots = min(options.batch_tokens, beam * source_tokens)
  quarter, sixteenth = max(slots // 4, 2), max(slots // 16, 2)
  return (
    Scenario('one by one', batch_tokens=1),
    Scenario(f'batches of {sixteenth:,} slots', batch_tokens=sixteenth),
    Scenario(f'batches of {quarter:,} slots', batch_tokens=quarter),
    # In several batches, so that the order changes which lines share a batch.
    Scenario('reversed', batch_tokens=quarter, order='reversed'),
    Scenario('shuffled', batch_tokens=quarter, order='shuffled'),
    Scenario('longest shape', longest_shape=True),
    *_device_counts(devices),
    *_kept_counts(options, n_best),
  )


def translated(
  run: TrainedModel | Ensemble,
  options: DecodingConfig,
  n_best: int,
  scenario: Scenario,
  lines: Sequence[str],
) -> Answers:
  """Translate the lines in one scenario."""
  slots = scenario.batch_tokens or options.batch_tokens
  numbers: list[int] = []
  translator = Translator(
    run,
    dataclasses.replace(options, batch_tokens=slots),
    scenario.n_best or n_best,
    devices=scenario.devices or None,
    number_of=lambda place: numbers[place],
    longest_shape_only=scenario.longest_shape,
  )
  order = _order(scenario.order, len(lines))
  # A line's draws are the same wherever it stands.
  numbers += _numbers([translator.count_pieces(line) for line in lines], order)
  found = translator.translate_n_best(lines[place] for place in order)
  answers = dict(zip(order, found, strict=True))
  return [answers[place] for place in range(len(lines))]


def _device_counts(devices: int) -> list[Scenario]:
  """Return scenarios with fewer devices than the reference: powers of two."""
  if devices == 1:
    return [Scenario('other devices', skipped='there is 1 device')]
  counts = [2**n for n in range((devices - 1).bit_length())]
  return [
    Scenario(f'{count} device{"s" * (count > 1)} of {devices}', devices=count)
    for count in counts
  ]


def _kept_counts(options: DecodingConfig, n_best: int) -> list[Scenario]:
  if options.search == 'sample':
    reason = 'another number of samples gives other samples'
    return [Scenario('other n_best', skipped=reason)]
  counts = sorted({1, options.beam_size} - {n_best})
  if not counts:
    return [Scenario('other n_best', skipped='a beam of 1 has 1 hypothesis')]
  enough = round(options.patience * options.beam_size)
  most = max(n_best, *counts)
  if options.patience and enough < most:
    reason = f'patience {options.patience:g} ends the search sooner for fewer'
    return [Scenario('other n_best', skipped=reason)]
  return [Scenario(f'n_best {count}', n_best=count) for count in counts]


def _order(order: Order, count: int) -> list[int]:
  """Return the places of the lines in the new order."""
  if order == 'shuffled':
    return np.random.default_rng(_SHUFFLE_SEED).permutation(count).tolist()
  places = list(range(count))
  return places[::-1] if order == 'reversed' else places


def _numbers(pieces: Sequence[int], order: Sequence[int]) -> list[int]:
  """Return the place in the given order of each piece in the new order."""
  firsts = np.cumsum([0, *pieces]).tolist()
  return [
    firsts[line] + piece for line in order for piece in range(pieces[line])
  ]
