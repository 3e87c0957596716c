"""Numbers and paragraphs of a report."""

import textwrap

from fusion_jax.evaluation.significance import Seeds

# A number that there is not.
NONE = '–'


def mean(seeds: Seeds | None) -> str:
  """The mean, with the deviation where there are several seeds."""
  if seeds is None:
    return NONE
  deviation = seeds.deviation
  return f'{seeds.mean:.2f}' + (
    '' if deviation is None else f' ± {deviation:.2f}'
  )


def signed(difference: float) -> str:
  """A difference with its sign; what rounds to 0 is +0.00."""
  return f'{round(difference, 2) + 0.0:+.2f}'


def p_value(value: float | None) -> str:
  """A probability with three decimals."""
  if value is None:
    return NONE
  return '<0.001' if value < 0.001 else f'{value:.3f}'


def paragraph(text: str) -> str:
  """A text in lines of 80 letters, or of one longer word."""
  return textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)
