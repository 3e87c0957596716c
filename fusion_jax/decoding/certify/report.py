"""Report of `certify`, as a table and as JSON."""

import json
import math
from collections.abc import Iterator
from typing import Any

from fusion_jax.decoding.certify.certify import (
  Certificate,
  Comparison,
  Difference,
)
from fusion_jax.decoding.translate import Translation

# Number of differences listed below the table; the JSON has all of them.
_SHOWN = 20


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
