"""Values that fill the slots, and how Babel (CLDR) and num2words write them.

The values do not depend on the language.
"""

import datetime
import decimal
import functools
import importlib.resources
import re
import tomllib
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from babel import Locale, dates, numbers, units
from num2words import num2words

LANGUAGES = ('de', 'en', 'es', 'fr', 'nl')
_FILE = importlib.resources.files(__package__).joinpath('frames.toml')
# Frames, values, and what stands before names of countries.
WRITTEN = tomllib.loads(_FILE.read_text(encoding='utf-8'))

Value = int | str | tuple[int, str] | tuple[int, int]


def _days(first_year: int, last_year: int) -> tuple[str, ...]:
  """List ISO dates without the first of a month (CLDR French lacks '1er')."""
  day = datetime.date(first_year, 1, 1)
  count = (datetime.date(last_year + 1, 1, 1) - day).days
  days = (day + datetime.timedelta(n) for n in range(count))
  return tuple(day.isoformat() for day in days if day.day > 1)


def _log_spaced(limit: int, points: int) -> tuple[int, ...]:
  """List whole numbers from 0 to below `limit`, evenly spaced in logarithm."""
  spaced = (round(limit ** (n / points)) - 1 for n in range(points))
  return tuple(dict.fromkeys(spaced))


def _listed(parts: str | Sequence[Mapping[str, Any]]) -> tuple[Value, ...]:
  """List the values of a row of [values]."""
  if isinstance(parts, str):
    return tuple(parts.split())
  values: list[Value] = []
  for part in parts:
    amounts = [n for bounds in part['numbers'] for n in range(*bounds)]
    named = part.get('units', '').split()
    values += [(n, unit) for unit in named for n in amounts] or amounts
  return tuple(values)


_ROWS = WRITTEN['values']
_WHOLE = (*range(2, 20), *range(20, 100, 5), *range(100, 1000, 50))

VALUES: dict[str, tuple[Value, ...]] = {
  **{family: _listed(parts) for family, parts in _ROWS.items()},
  'date': _days(1990, 2029),
  'month': tuple((y, m) for y in range(1990, 2030) for m in range(1, 13)),
  'number': _log_spaced(100_000, 2500),
  # In hundredths of the currency.
  'price': tuple(
    (100 * whole + cents, currency)
    for currency in _ROWS['currency'].split()
    for whole in _WHOLE
    for cents in (0, 50, 95, 99)
  ),
  'time': tuple((h, m) for h in range(5, 24) for m in range(0, 60, 5)),
}

_PLAIN_SPACES = str.maketrans('\u00a0\u202f\u2009', '   ')


@functools.cache
def render(family: str, style: str, value: Value, language: str) -> str:
  """Write one value of a family of `VALUES` in one language."""
  text = _WRITERS[family](value, Locale.parse(language), style)
  return unicodedata.normalize('NFC', text).translate(_PLAIN_SPACES)


def _date(value: str, locale: Locale, style: str) -> str:
  day = datetime.date.fromisoformat(value)
  return dates.format_date(day, style or 'long', locale=locale)


_LENGTHS = {
  'minute': datetime.timedelta(minutes=1),
  'hour': datetime.timedelta(hours=1),
  'day': datetime.timedelta(days=1),
  'week': datetime.timedelta(days=7),
  'month': datetime.timedelta(days=30),
  'year': datetime.timedelta(days=365),
}


def _span(value: tuple[int, str], locale: Locale, style: str) -> str:
  """Write a time span: 'ago', 'ahead' or neither."""
  amount, unit = value
  length = amount * _LENGTHS[unit]
  return dates.format_timedelta(
    -length if style == 'ago' else length,
    threshold=1,
    add_direction=style != '',
    locale=locale,
  )


def _digits(value: int, locale: Locale, style: str) -> str:
  if style != 'words':
    return numbers.format_decimal(value, locale=locale)
  text = num2words(value, lang=locale.language)
  if locale.language == 'es':
    # 'uno' is shortened before 'mil' (RAE, Diccionario panhispánico de dudas).
    text = text.replace('veintiuno mil', 'veintiún mil')
    text = text.replace('uno mil', 'un mil')
  if locale.language == 'nl' and value > 1:
    # Only 'één' by itself has accents; a space follows 'duizend' (Taalunie).
    text = text.replace('éé', 'ee').replace('duizend', 'duizend ').strip()
  return text


def _ordinal(value: int, locale: Locale, _: str) -> str:
  """Write the form that stands after 'the' and before a masculine noun."""
  text = num2words(value, lang=locale.language, to='ordinal')
  if locale.language == 'es':
    # One word without the first accent ('decimotercero', 'decimoctavo'), and
    # no final 'o' before the noun: 'decimotercer'. Source: RAE, as above.
    text = re.sub(r'décimo (?=\w)|décimo(?=\w)', 'decimo', text)
    text = text.replace('oo', 'o')
    text = re.sub(r'(primer|tercer)o$', r'\1', text)
  return text


def _amount(value: tuple[int, str], locale: Locale, _: str) -> str:
  amount, currency = value
  return numbers.format_currency(
    amount, currency, format_type='name', currency_digits=False, locale=locale
  )


# The quantities of CLDR.
_QUANTITIES = {
  'area': 'area',
  'data': 'digital',
  'height': 'length',
  'length': 'length',
  'speed': 'speed',
  'temperature': 'temperature',
  'volume': 'volume',
  'weight': 'mass',
}


def _measure(family: str, value: Any, locale: Locale, _: str) -> str:
  amount, unit = value
  return units.format_unit(
    decimal.Decimal(amount) / 10 if family == 'length' else amount,
    f'{_QUANTITIES[family]}-{unit}',
    length='long',
    locale=locale,
  )


def _country(value: str, locale: Locale, style: str) -> str:
  name, language = locale.territories[value], locale.language
  if not style:
    return name
  masculine = WRITTEN['masculine'].get(language, '').split()
  before = 'au' if value in masculine else WRITTEN['preposition'][language]
  return WRITTEN['in_country'][language].get(value, f'{before} {name}')


_WRITERS: dict[str, Callable[[Any, Locale, str], str]] = {
  **dict.fromkeys(('count', 'few', 'number', 'track'), _digits),
  **dict.fromkeys(('days', 'hours', 'years'), _span),
  **{family: functools.partial(_measure, family) for family in _QUANTITIES},
  'amount': _amount,
  'country': _country,
  'currency': lambda code, locale, _: numbers.get_currency_name(
    code, locale=locale
  ),
  'date': _date,
  'language': lambda code, locale, _: locale.languages[code],
  'month': lambda month, locale, _: dates.format_skeleton(
    'yMMMM', datetime.date(month[0], month[1], 1), locale=locale
  ),
  'ordinal': _ordinal,
  'percent': lambda tenths, locale, _: numbers.format_percent(
    decimal.Decimal(tenths) / 1000, decimal_quantization=False, locale=locale
  ),
  'person': lambda name, *_: name,
  'price': lambda price, locale, _: numbers.format_currency(
    decimal.Decimal(price[0]) / 100, price[1], locale=locale
  ),
  'time': lambda time, locale, _: dates.format_time(
    datetime.time(*time), 'short', locale=locale
  ),
  'weekday': lambda day, locale, _: dates.get_day_names('wide', locale=locale)[
    day
  ],
}
