"""Comparison of translations across batches, to show that they do not differ.

The lines are translated as decode.py does by default, which is the reference,
and in every other scenario. Two things hold for a correct model and search:

1. Every scenario gives the same n best translations with the same scores.
   Rounding may change the score of one translation by at most
   `rounding` * max(1, |score|). Where two scenarios differ, both translations
   are scored by teacher forcing, each alone; they are a tie if these two scores
   differ by no more than the same bound. Anything else is a difference.
2. Each subword has the same log-probability in the step-by-step search, which
   reads a cache, and in the teacher-forced pass, within the bound for a value
   of that size.

Hypotheses that tie before they end may leave the beam in one scenario and stay
in the other. If their continuations differ, that counts as a difference,
although neither is wrong.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import pydantic_core
from jaxtyping import Float

from fusion_jax.config import DecodingConfig, ModelConfig
from fusion_jax.decoding.batches import target_limit
from fusion_jax.decoding.score import Scored, Scorer
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.runs.precision import Precision
from fusion_jax.tables import table

logger = logging.getLogger(__name__)

# Factor on the spread of a random walk: hard cases pass, a wrong term does not.
_MARGIN = 8

# Products are added in float32, so the rounding of the features dominates.
_BFLOAT16 = 2e-2
# A last bit of float32 may round an operand of a product up or down.
_NARROW: Mapping[Precision, float] = {'bfloat16': 1e-2, 'int8': 5e-2}

# Number of differences listed below the table; the JSON has all of them.
_SHOWN = 20

# The n best translations of every line, in the order of the lines.
Answers = list[list[Translation]]


def rounding(model: ModelConfig, precision: Precision = 'float32') -> float:
  """Return the change of a log-probability or score that rounding explains.

  For float32 it is 8 eps sqrt(L D): each of the L layers of both sides adds
  sums of D terms, whose roundings add up like the steps of a random walk.
  """
  if model.compute_dtype == 'bfloat16':
    return _BFLOAT16
  if precision == 'float32':
    precision = model.product_dtype
  if precision != 'float32':
    return _NARROW[precision]
  layers = model.encoder_layers + model.decoder_layers
  terms = layers * model.width
  return _MARGIN * float(np.finfo(np.float32).eps) * terms**0.5


def relative_gaps(
  ours: Sequence[float] | Float[np.ndarray, '...'],
  theirs: Sequence[float] | Float[np.ndarray, '...'],
) -> Float[np.ndarray, '...']:
  """Return |ours - theirs| / max(1, |theirs|), which `rounding` bounds."""
  theirs = np.asarray(theirs)
  return np.abs(np.subtract(ours, theirs)) / np.maximum(1, np.abs(theirs))


class Scenario(NamedTuple):
  """How the lines are translated; the defaults are those of decode.py."""

  name: str
  slots: int = 0  # Of a batch; 0: those of the options.
  order: Sequence[int] = ()  # Of the lines; empty: as given.
  longest_shape: bool = False  # For every source.
  devices: int | None = None


def all_scenarios(
  options: DecodingConfig, answers: Answers, devices: int
) -> list[Scenario]:
  """Return every scenario in which the answers should be the same."""
  pairs = [pair for ranked in answers for pair in ranked[0].pairs]
  beam = max(options.beam_size, *map(len, answers))
  used = min(options.batch_tokens, beam * sum(len(p.source) for p in pairs))
  quarter, sixteenth = max(used // 4, 2), max(used // 16, 2)
  scenarios = [
    Scenario('one by one', slots=1),
    Scenario(f'batches of {sixteenth:,} slots', slots=sixteenth),
    Scenario(f'batches of {quarter:,} slots', slots=quarter),
    Scenario('longest shape', longest_shape=True),
  ]
  # The number of a line decides what is drawn for it.
  if options.search == 'beam':
    places = np.arange(len(answers))
    shuffled = np.random.default_rng(0).permutation(places).tolist()
    scenarios += [
      # In several batches, so that the order changes which lines share one.
      Scenario('reversed', quarter, places[::-1].tolist()),
      Scenario('shuffled', quarter, shuffled),
    ]
  fewer = (2**n for n in range((devices - 1).bit_length()))
  return scenarios + [
    Scenario(f'{count} of {devices} devices', devices=count) for count in fewer
  ]


def translated(
  run: TrainedModel,
  options: DecodingConfig,
  n_best: int,
  scenario: Scenario,
  lines: Sequence[str],
) -> Answers:
  """Translate the lines in one scenario."""
  slots = scenario.slots or options.batch_tokens
  translator = Translator(
    run,
    dataclasses.replace(options, batch_tokens=slots),
    n_best,
    devices=scenario.devices,
  )
  if scenario.longest_shape:
    longest = max(shape.source for shape in translator.shapes)
    translator.shapes = tuple(
      shape for shape in translator.shapes if shape.source == longest
    )
  order = scenario.order or range(len(lines))
  translations = translator.translate_n_best(lines[place] for place in order)
  answers = dict(zip(order, translations, strict=True))
  return [answers[place] for place in range(len(lines))]


# After a tie: the same translation with another score, another translation, and
# a translation that one of the scenarios lacks.
Kind = Literal['tie', 'score', 'translation', 'missing']


@dataclasses.dataclass(frozen=True)
class Difference:
  """Place where a scenario does not give the result of the reference."""

  line: int  # Of the file, from 1.
  rank: int  # Of the translation, from 1.
  kind: Kind
  # Score of ours less that of theirs: as each scenario found it for 'score', by
  # teacher forcing otherwise; None if one is missing.
  gap: float | None
  ours: Translation | None  # Of the reference.
  theirs: Translation | None  # Of the scenario.


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Comparison of a scenario with the reference."""

  scenario: str
  differences: tuple[Difference, ...] = ()
  largest: float = 0.0  # Change of the score of a translation that both found.

  @property
  def different(self) -> list[int]:
    """Lines with a difference that is no tie."""
    return sorted({d.line for d in self.differences if d.kind != 'tie'})

  @property
  def ties(self) -> list[int]:
    """Lines whose differences are all ties."""
    return sorted({d.line for d in self.differences} - set(self.different))


@dataclasses.dataclass(frozen=True)
class StepCheck:
  """Cached steps against the teacher-forced pass: the largest relative gap.

  Its place is counted from 1; 0 if nothing was compared.
  """

  subwords: int = 0
  largest: float = 0.0
  line: int = 0
  rank: int = 0
  position: int = 0


@dataclasses.dataclass(frozen=True)
class Certificate:
  """All results of the check; `fault` is the verdict."""

  tolerance: float
  lines: Sequence[int]
  comparisons: tuple[Comparison, ...]
  steps: StepCheck

  @property
  def fault(self) -> str:
    """What does not hold, in one line; '' if there is nothing."""
    if not self.steps.subwords:
      return 'no line has a translation, so that nothing could be compared'
    for comparison in self.comparisons:
      if comparison.different:
        shown = ', '.join(map(str, comparison.different[:5]))
        more = ', ...' if len(comparison.different) > 5 else ''
        return (
          f'{len(comparison.different)} of {len(self.lines)} sentences differ '
          f'in the scenario {comparison.scenario!r}: line {shown}{more}'
        )
    # NaN is a fault too.
    return '' if self.steps.largest <= self.tolerance else self.step_line

  @property
  def step_line(self) -> str:
    """The check of the steps, in one line."""
    steps = self.steps
    return (
      f'cached steps against teacher-forced pass: largest difference '
      f'{steps.largest:.1e} (line {steps.line}, translation {steps.rank}, '
      f'subword {steps.position}) of {steps.subwords:,} subwords, for each '
      f'unit of max(1, |log-probability|); at most {self.tolerance:.1e} allowed'
    )


def certify(
  run: TrainedModel,
  options: DecodingConfig,
  lines: Sequence[tuple[int, str]],
  n_best: int,
  scenarios: Sequence[Scenario] | None = None,
) -> Certificate:
  """Translate numbered lines in many scenarios and compare the results."""
  numbers, texts = zip(*lines, strict=True)
  ours = translated(run, options, n_best, Scenario('default'), texts)
  if scenarios is None:
    scenarios = all_scenarios(options, ours, jax.device_count())
  tolerance = rounding(run.config.model, run.precision)
  pieces = _forced(run, options)
  comparisons = []
  for count, scenario in enumerate(scenarios, start=1):
    logger.info('%s (%d of %d)', scenario.name, count, len(scenarios))
    theirs = translated(run, options, n_best, scenario, texts)
    differences, largest = compare(
      numbers,
      ours,
      theirs,
      lambda translation: sum(piece.score for piece in pieces(translation)),
      tolerance,
    )
    comparisons.append(Comparison(scenario.name, differences, largest))
  steps = compare_steps(
    numbers,
    ours,
    lambda answer: [token for p in pieces(answer) for token in p.tokens],
  )
  return Certificate(tolerance, numbers, tuple(comparisons), steps)


def compare(
  numbers: Sequence[int],
  ours: Answers,
  theirs: Answers,
  score: Callable[[Translation], float],
  tolerance: float,
) -> tuple[tuple[Difference, ...], float]:
  """Compare rank by rank; also return the largest change of one's score."""
  differences, changes = [], [0.0]
  for line, *answers in zip(numbers, ours, theirs, strict=True):
    ranked = itertools.zip_longest(*answers)
    for rank, (mine, other) in enumerate(ranked, start=1):
      if mine is None or other is None:
        missing = Difference(line, rank, 'missing', None, mine, other)
        differences.append(missing)
        continue
      same = mine.pairs == other.pairs
      if same:
        gap = mine.score - other.score
        changes.append(abs(gap))
      else:
        gap = score(mine) - score(other)
      ties = abs(gap) <= tolerance * max(1.0, abs(mine.score))
      if not (same and ties):
        kind: Kind = 'score' if same else 'tie' if ties else 'translation'
        differences.append(Difference(line, rank, kind, gap, mine, other))
  return tuple(differences), float(np.max(changes))


def compare_steps(
  numbers: Sequence[int],
  answers: Answers,
  forced: Callable[[Translation], Sequence[float]],
) -> StepCheck:
  """Compare the log-probabilities of the search with those of `forced`."""
  gaps: list[float] = []
  places: list[tuple[int, int, int]] = []
  for line, ranked in zip(numbers, answers, strict=True):
    for rank, answer in enumerate(ranked, start=1):
      cached = answer.token_log_probabilities
      gaps += relative_gaps(cached, forced(answer)).tolist()
      places += [(line, rank, position + 1) for position in range(len(cached))]
  if not gaps:
    return StepCheck()
  # argmax returns the first NaN, so NaN counts as the largest.
  worst = int(np.argmax(gaps))
  return StepCheck(len(gaps), gaps[worst], *places[worst])


def _forced(
  run: TrainedModel, options: DecodingConfig
) -> Callable[[Translation], list[Scored]]:
  """Return a function that scores the pieces of a translation, each alone."""
  # A translation may be longer than the longest source.
  longest = options.max_source_length
  longest = max(longest, target_limit(longest, options, run.longest))
  scorer = Scorer(
    run, dataclasses.replace(options, max_source_length=longest, batch_tokens=1)
  )
  return lambda translation: list(
    scorer.score_ids((pair,) for pair in translation.pairs)
  )


def report(certificate: Certificate) -> Iterator[str]:
  """Yield the lines of the printed report."""
  header = 'scenario', 'different', 'ties', 'largest score difference'
  yield table(
    'markdown',
    header,
    [
      (c.scenario, f'{len(c.different)}', f'{len(c.ties)}', f'{c.largest:.1e}')
      for c in certificate.comparisons
    ],
    numeric=True,
  )
  yield (
    'tie: two translations whose scores differ by at most '
    f'{certificate.tolerance:.1e} * max(1, |score|)'
  )
  yield certificate.step_line
  entries = [
    (comparison.scenario, difference)
    for comparison in certificate.comparisons
    for difference in comparison.differences
  ]
  entries.sort(key=lambda entry: entry[1].kind == 'tie')
  for name, difference in entries[:_SHOWN]:
    yield (
      f'line {difference.line}, {name}, translation {difference.rank}: '
      f'{difference.kind}'
    )
    yield f'  default: {_shown(difference.ours)}'
    yield f'  {name}: {_shown(difference.theirs)}'
  if len(entries) > _SHOWN:
    left = len(entries) - _SHOWN
    yield f'{left} more differences: --output=FILE has them all'


def _shown(translation: Translation | None) -> str:
  if translation is None:
    return '(none)'
  return f'{translation.score:.6f} {translation.text}'


def as_json(certificate: Certificate, **about: Any) -> bytes:
  """Return everything as JSON; what is not finite is null."""
  values = about | dataclasses.asdict(certificate)
  values |= {'certified': not certificate.fault}
  return pydantic_core.to_json(values, inf_nan_mode='null')
