"""Numbers and paragraphs of a report."""

import textwrap

from fusion_jax.evaluation.significance import Seeds

# A number that there is not.
NONE = '–'


def mean(seeds: Seeds, digits: int = 2) -> str:
  """The mean, with the deviation where there are several seeds."""
  own = f'{seeds.mean:.{digits}f}'
  if seeds.deviation is None:
    return own
  return f'{own} ± {seeds.deviation:.{digits}f}'


def signed(difference: float | None, digits: int = 2) -> str:
  """A difference with its sign; what rounds to 0 is +0.00."""
  if difference is None:
    return NONE
  return f'{round(difference, digits) + 0.0:+.{digits}f}'


def p_value(value: float | None) -> str:
  """A probability with three decimals."""
  if value is None:
    return NONE
  return '<0.001' if value < 0.001 else f'{value:.3f}'


def paragraph(text: str) -> str:
  """A text in lines of 80 letters, or of one longer word."""
  return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)
