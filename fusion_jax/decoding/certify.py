"""Comparison of translations across batches, to show that they do not differ.

The lines are translated in the default scenario, which is the reference, and in
every other scenario. Two things hold for a correct model and search:

1. Every scenario gives the same n best translations with the same scores.
   Rounding may change the score of one translation by at most
   `Tolerance.relative` * max(1, |score|); each translation that two scenarios
   have in common is held to that bound. Where two scenarios differ, both
   translations are scored by teacher forcing, each alone; they are a tie if
   these two scores differ by no more than the same bound. Anything else is a
   difference.
2. Each subword has the same log-probability in the step-by-step search, which
   reads a cache, and in the teacher-forced pass, within the bound for a value
   of that size.

Hypotheses that tie before they end may leave the beam in one scenario and stay
in the other. If their continuations differ, that counts as a difference,
although neither is wrong.
"""

import dataclasses
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from fusion_jax.config import DecodingConfig, ModelConfig
from fusion_jax.decoding.batches import target_limit
from fusion_jax.decoding.ensemble import Ensemble
from fusion_jax.decoding.score import Scored, Scorer
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.runs.loading import TrainedModel

# Factor on the spread of a random walk: hard cases pass, a wrong term does not.
_MARGIN = 8

# Products are added in float32, so the rounding of the features dominates.
_BFLOAT16 = 2e-2

_SHUFFLE_SEED = 0

# Number of differences listed below the table; the JSON has all of them.
_SHOWN = 20


def rounding(model: ModelConfig) -> float:
  """Return the change of a log-probability or score that rounding explains.

  For float32 it is 8 eps sqrt(L D): each of the L layers of both sides adds
  sums of D terms, whose roundings add up like the steps of a random walk.
  """
  if model.compute_dtype == 'bfloat16':
    return _BFLOAT16
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


Order = Literal['given', 'reversed', 'shuffled']

# The n best translations of every line, in the order of the lines.
Answers = list[list[Translation]]


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


logger = logging.getLogger(__name__)

# Teacher-forced scores of translations.
Score = Callable[[Sequence[Translation]], Sequence[float]]


class Tolerance(NamedTuple):
  """Change that rounding may cause.

  Attributes:
    relative: Largest change of a score or of a subword's log-probability,
      relative to max(1, its absolute value).
    decides: Whether a larger change fails the check.
  """

  relative: float
  decides: bool

  def of(self, score: float) -> float:
    """Return the largest change of this score."""
    return self.relative * max(1.0, abs(score))


Kind = Literal['tie', 'score', 'translation', 'missing']


@dataclasses.dataclass(frozen=True)
class Difference:
  """Place where a scenario does not give the result of the reference.

  Attributes:
    line, rank: Number of the line in the file and of its translation, from 1.
    kind: 'tie', 'score' (the same translation with another score),
      'translation' (another translation) or 'missing' (one scenario has none).
    ours, theirs: Translation of the reference and of the scenario.
    gap: Score of ours less that of theirs: as each scenario found it for
      'score', by teacher forcing otherwise; None if one is missing.
    bound: Largest gap of a tie.
  """

  line: int
  rank: int
  kind: Kind
  ours: Translation | None
  theirs: Translation | None
  gap: float | None
  bound: float


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Comparison of a scenario with the reference.

  Attributes:
    largest: Largest difference of the scores of a translation that both found.
  """

  scenario: Scenario
  sentences: int = 0
  differences: tuple[Difference, ...] = ()
  largest: float = 0.0

  @property
  def different(self) -> list[int]:
    """Lines with a difference that is no tie."""
    found = {each.line for each in self.differences if each.kind != 'tie'}
    return sorted(found)

  @property
  def ties(self) -> list[int]:
    """Lines whose differences are all ties."""
    found = {each.line for each in self.differences}
    return sorted(found - set(self.different))


@dataclasses.dataclass(frozen=True)
class StepCheck:
  """Log-probabilities of subwords: step by step against teacher-forced.

  Attributes:
    largest, mean: Largest and mean difference, relative to max(1, absolute
      value of the teacher-forced log-probability).
    line, rank, position: Place of the largest difference, each from 1; 0 if
      nothing was compared.
  """

  subwords: int = 0
  largest: float = 0.0
  mean: float = 0.0
  line: int = 0
  rank: int = 0
  position: int = 0


@dataclasses.dataclass(frozen=True)
class Certificate:
  """All results of the check; `holds` is the verdict."""

  tolerance: Tolerance
  n_best: int
  comparisons: tuple[Comparison, ...]
  steps: StepCheck

  @property
  def holds(self) -> bool:
    """Whether only ties and rounding were found, on at least one subword."""
    same = not any(each.different for each in self.comparisons)
    return same and self.steps_agree and self.steps.subwords > 0

  @property
  def steps_agree(self) -> bool:
    """Whether the cached steps give what the teacher-forced pass gives."""
    return self.steps.largest <= self.tolerance.relative


def certify(
  run: TrainedModel,
  options: DecodingConfig,
  lines: Sequence[tuple[int, str]],
  n_best: int,
  scenarios: Sequence[Scenario] | None = None,
) -> Certificate:
  """Translate lines in many scenarios and compare the results."""
  numbers, texts = zip(*lines, strict=True)
  ours = translated(run, options, n_best, REFERENCE, texts)
  if scenarios is None:
    scenarios = all_scenarios(
      options, n_best, _source_tokens(ours), jax.device_count()
    )
  model = run.config.model
  tolerance = Tolerance(rounding(model), model.compute_dtype == 'float32')
  forcing = TeacherForcing(run, options)
  comparisons = []
  for count, scenario in enumerate(scenarios, start=1):
    if scenario.skipped:
      comparisons.append(Comparison(scenario))
      continue
    logger.info('%s (%d of %d)', scenario.name, count, len(scenarios))
    theirs = translated(run, options, n_best, scenario, texts)
    keep = min(n_best, scenario.n_best or n_best)
    mine, other = ([each[:keep] for each in found] for found in (ours, theirs))
    comparisons.append(
      compare(scenario, numbers, mine, other, forcing.score, tolerance)
    )
  tokens = iter(forcing.tokens([each for found in ours for each in found]))
  steps = compare_steps(
    numbers, ours, [list(itertools.islice(tokens, len(each))) for each in ours]
  )
  return Certificate(tolerance, n_best, tuple(comparisons), steps)


def compare(
  scenario: Scenario,
  numbers: Sequence[int],
  ours: Answers,
  theirs: Answers,
  score: Score,
  tolerance: Tolerance,
) -> Comparison:
  """Compare the answers of a scenario with the reference, rank by rank."""
  same: list[tuple[int, int, Translation, Translation]] = []
  other: list[tuple[int, int, Translation | None, Translation | None]] = []
  for line, *found in zip(numbers, ours, theirs, strict=True):
    ranked = itertools.zip_longest(*found)
    for rank, (mine, their) in enumerate(ranked, start=1):
      if mine is None or their is None or mine.pairs != their.pairs:
        other.append((line, rank, mine, their))
      else:
        same.append((line, rank, mine, their))
  differences = [_rescored(*place, tolerance) for place in same]
  differences += _apart(other, score, tolerance)
  changes = [abs(mine.score - their.score) for _, _, mine, their in same]
  apart = [each for each in differences if each is not None]
  apart.sort(key=lambda each: (each.line, each.rank))
  largest = float(np.max([0.0, *changes]))
  return Comparison(scenario, len(numbers), tuple(apart), largest)


def compare_steps(
  numbers: Sequence[int],
  answers: Answers,
  forced: Sequence[Sequence[Sequence[float]]],
) -> StepCheck:
  """Compare the log-probabilities of the search with given ones."""
  gaps, places = [], []
  for line, *found in zip(numbers, answers, forced, strict=True):
    for rank, (answer, tokens) in enumerate(zip(*found, strict=True), start=1):
      cached = answer.token_log_probabilities
      gaps += relative_gaps(cached, tokens).tolist()
      places += [(line, rank, position + 1) for position in range(len(cached))]
  if not gaps:
    return StepCheck()
  # argmax returns the first NaN, so NaN counts as the largest.
  worst = int(np.argmax(gaps))
  return StepCheck(len(gaps), gaps[worst], float(np.mean(gaps)), *places[worst])


class TeacherForcing:
  """Teacher-forced scores of the translations of the search.

  Each translation has a batch of its own, so that no neighbour can change its
  score.
  """

  def __init__(self, run: TrainedModel, options: DecodingConfig):
    """Prepare to score; nothing is compiled yet."""
    # A translation may be longer than the longest source.
    longest = options.max_source_length
    longest = max(longest, target_limit(longest, options, run.longest))
    self._scorer = Scorer(
      run,
      dataclasses.replace(options, max_source_length=longest, batch_tokens=1),
    )

  def tokens(self, translations: Sequence[Translation]) -> list[list[float]]:
    """Return the log-probability of every subword of each translation."""
    return [
      [token for piece in pieces for token in piece.tokens]
      for pieces in self._scored(translations)
    ]

  def score(self, translations: Sequence[Translation]) -> list[float]:
    """Return the score by which the search ranks, for each translation."""
    return [
      sum(piece.score for piece in pieces)
      for pieces in self._scored(translations)
    ]

  def _scored(self, translations: Sequence[Translation]) -> list[list[Scored]]:
    """Score the pieces of each translation."""
    pairs = [(pair,) for each in translations for pair in each.pairs]
    scored = iter(list(self._scorer.score_ids(pairs)))
    return [
      list(itertools.islice(scored, len(each.pairs))) for each in translations
    ]


def _source_tokens(answers: Answers) -> int:
  best = (translations[0] for translations in answers)
  return sum(len(pair.source) for each in best for pair in each.pairs)


def _rescored(
  line: int,
  rank: int,
  ours: Translation,
  theirs: Translation,
  tolerance: Tolerance,
) -> Difference | None:
  """Return a difference if a translation's two scores are too far apart."""
  gap, bound = ours.score - theirs.score, tolerance.of(ours.score)
  if abs(gap) <= bound:
    return None
  return Difference(line, rank, 'score', ours, theirs, gap, bound)


def _apart(
  places: Sequence[tuple[int, int, Translation | None, Translation | None]],
  score: Score,
  tolerance: Tolerance,
) -> list[Difference]:
  """Return the differences of translations, which are all scored at once."""
  both = [
    each
    for _, _, ours, theirs in places
    if ours is not None and theirs is not None
    for each in (ours, theirs)
  ]
  scores = iter(score(both))
  differences = []
  for line, rank, ours, theirs in places:
    if ours is None or theirs is None:
      differences.append(
        Difference(line, rank, 'missing', ours, theirs, None, 0.0)
      )
      continue
    gap, bound = next(scores) - next(scores), tolerance.of(ours.score)
    kind: Kind = 'tie' if abs(gap) <= bound else 'translation'
    differences.append(Difference(line, rank, kind, ours, theirs, gap, bound))
  return differences


def table(certificate: Certificate) -> Iterator[str]:
  """Yield the lines of the printed report."""
  names = [each.scenario.name for each in certificate.comparisons]
  width = max(map(len, ('scenario', *names)))
  numbers = 'sentences  different  ties  largest score difference'
  yield f'{"scenario":<{width}}  {numbers}'
  for comparison in certificate.comparisons:
    yield f'{comparison.scenario.name:<{width}}  {_row(comparison)}'
  tolerance = certificate.tolerance
  yield (
    'tie: two translations whose scores differ by at most '
    f'{tolerance.relative:.1e} * max(1, |score|)'
  )
  yield f'cached steps against teacher-forced pass: {_steps(certificate)}'
  yield from _listed(certificate)
  yield _verdict(certificate)


def failure(certificate: Certificate) -> str:
  """Describe in one line what fails; '' if nothing does or it is not judged."""
  if certificate.holds or not certificate.tolerance.decides:
    return ''
  if not certificate.steps.subwords:
    return 'no line has a translation, so that nothing could be compared'
  for comparison in certificate.comparisons:
    if comparison.different:
      lines = ', '.join(map(str, comparison.different[:5]))
      more = ', ...' if len(comparison.different) > 5 else ''
      return (
        f'{len(comparison.different)} of {comparison.sentences} sentences '
        f'differ in the scenario {comparison.scenario.name!r}: line {lines}'
        f'{more}'
      )
  return f'cached steps against teacher-forced pass: {_steps(certificate)}'


def as_json(certificate: Certificate, **about: Any) -> str:
  """Return the report as JSON."""
  tolerance, steps = certificate.tolerance, certificate.steps
  report = {
    **about,
    'certified': certificate.holds,
    'decides': tolerance.decides,
    'tie': f'gap <= {tolerance.relative:.1e} * max(1, |score|)',
    'tolerance': tolerance.relative,
    'n_best': certificate.n_best,
    'scenarios': [_scenario(each) for each in certificate.comparisons],
    'cached_against_forced': {
      'subwords': steps.subwords,
      'largest': _number(steps.largest),
      'mean': _number(steps.mean),
      'line': steps.line,
      'rank': steps.rank,
      'position': steps.position,
    },
  }
  return json.dumps(report, ensure_ascii=False, allow_nan=False)


def _row(comparison: Comparison) -> str:
  if comparison.scenario.skipped:
    return f'skipped: {comparison.scenario.skipped}'
  different, ties = len(comparison.different), len(comparison.ties)
  return (
    f'{comparison.sentences:>9}  {different:>9}  {ties:>4}  '
    f'{comparison.largest:>24.1e}'
  )


def _steps(certificate: Certificate) -> str:
  steps = certificate.steps
  return (
    f'largest difference {steps.largest:.1e} (line {steps.line}, translation '
    f'{steps.rank}, subword {steps.position}), mean {steps.mean:.1e} of '
    f'{steps.subwords:,} subwords, for each unit of max(1, |log-probability|); '
    f'at most {certificate.tolerance.relative:.1e} allowed'
  )


def _listed(certificate: Certificate) -> Iterator[str]:
  found = [
    (each.kind == 'tie', comparison.scenario.name, each)
    for comparison in certificate.comparisons
    for each in comparison.differences
  ]
  found.sort(key=lambda entry: entry[0])
  for _, name, each in found[:_SHOWN]:
    gap = 'no gap' if each.gap is None else f'gap {each.gap:.2e}'
    yield (
      f'line {each.line}, {name}, translation {each.rank}: {each.kind}, '
      f'{gap}, tie up to {each.bound:.1e}'
    )
    yield f'  default: {_shown(each.ours)}'
    yield f'  {name}: {_shown(each.theirs)}'
  if len(found) > _SHOWN:
    yield f'{len(found) - _SHOWN} more differences: --output=FILE has them all'


def _shown(translation: Translation | None) -> str:
  if translation is None:
    return '(none)'
  return f'{translation.score:.6f} {translation.text}'


def _verdict(certificate: Certificate) -> str:
  if not certificate.tolerance.decides:
    return 'reported, not judged: only float32 is'
  return 'certified' if certificate.holds else 'not certified'


def _scenario(comparison: Comparison) -> dict[str, Any]:
  scenario = comparison.scenario
  if scenario.skipped:
    return {'scenario': scenario.name, 'skipped': scenario.skipped}
  return {
    'scenario': scenario.name,
    'sentences': comparison.sentences,
    'different': len(comparison.different),
    'ties': len(comparison.ties),
    'largest_score_difference': _number(comparison.largest),
    'differences': [_difference(each) for each in comparison.differences],
  }


def _difference(difference: Difference) -> dict[str, Any]:
  return {
    'line': difference.line,
    'rank': difference.rank,
    'kind': difference.kind,
    'gap': _number(difference.gap),
    'bound': _number(difference.bound),
    'ours': _translation(difference.ours),
    'theirs': _translation(difference.theirs),
  }


def _translation(translation: Translation | None) -> dict[str, Any] | None:
  if translation is None:
    return None
  return {
    'text': translation.text,
    'score': _number(translation.score),
    'ids': [pair.target for pair in translation.pairs],
  }


def _number(value: float | None) -> float | None:
  return value if value is not None and math.isfinite(value) else None
