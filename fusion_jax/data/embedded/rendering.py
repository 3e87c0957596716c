"""Values that fill the slots, and how Babel (CLDR) and num2words write them.

The values do not depend on the language. There are few names, so that each is
seen often; a held-out sentence is new in its combination of values.
"""

import datetime
import decimal
import functools
import importlib.resources
import re
import tomllib
import unicodedata
from collections.abc import Callable
from typing import Any

import babel
import babel.dates
import babel.numbers
import babel.units
from num2words import num2words

LANGUAGES = ('de', 'en', 'es', 'fr', 'nl')
_FILE = importlib.resources.files(__package__).joinpath('frames.toml')
# The frames, and names of countries with an article.
WRITTEN = tomllib.loads(_FILE.read_text(encoding='utf-8'))

Value = int | str | tuple[int, str] | tuple[int, int]


def names(text: str) -> tuple[str, ...]:
  """Split a list of names at its spaces."""
  return tuple(text.split())


def _days(first_year: int, last_year: int) -> tuple[str, ...]:
  """List ISO dates without the first of a month (CLDR French lacks '1er')."""
  day = datetime.date(first_year, 1, 1)
  count = (datetime.date(last_year + 1, 1, 1) - day).days
  days = (day + datetime.timedelta(n) for n in range(count))
  return tuple(day.isoformat() for day in days if day.day > 1)


def _log_spaced(limit: int, points: int) -> tuple[int, ...]:
  """List whole numbers from 0 to below `limit`, evenly spaced in logarithm."""
  numbers = (round(limit ** (n / points)) - 1 for n in range(points))
  return tuple(dict.fromkeys(numbers))


def _measures(
  amounts: tuple[int, ...], units: tuple[str, ...]
) -> tuple[tuple[int, str], ...]:
  return tuple((amount, unit) for unit in units for amount in amounts)


_COUNTRIES = names("""
    AL AR AT AU BE BG BO BR CA CH CL CN CO CZ DE DK DZ EC EE EG ES ET FI FR GB
    GR HR HU ID IE IN IT JP KE KR LT LU LV MA MX NG NL NO NP NZ PE PK PL PT RO
    RS RU SE SI SK SN TH TN TR UA US UY VE VN ZA
""")

_LANGUAGES = names("""
    ar bg ca cs da de el en es et fa fi fr he hi hr hu id is it ja ko lt lv ms
    nl no pl pt ro ru sk sl sq sr sv sw ta th tr uk vi zh
""")

# All of them have two decimals.
_CURRENCIES = names('AUD CAD CHF DKK EUR GBP INR MXN NOK PLN SEK USD')

_PEOPLE = names('Anna Clara Eva Julia Laura Maria Sara Sofia')

_TENS = tuple(range(2, 20)) + tuple(range(20, 100, 5))
_HUNDREDS = tuple(range(100, 1000, 10))
_THOUSANDS = tuple(range(1100, 10_000, 100)) + tuple(
  range(10_000, 100_000, 1000)
)
_CENTS = (0, 50, 95, 99)
_PRICES = tuple(
  100 * whole + cents
  for whole in (*_TENS, *range(100, 1000, 50))
  for cents in _CENTS
)

_HOURS = (
  *_measures(tuple(range(2, 60)), ('minute',)),
  *_measures(tuple(range(1, 24)), ('hour',)),
)
_MONTHS = _measures(tuple(range(1, 12)), ('month',))

VALUES: dict[str, tuple[Value, ...]] = {
  'amount': _measures((*_TENS, *_HUNDREDS), _CURRENCIES),
  'area': _measures((*_TENS, *_HUNDREDS), ('hectare', 'square-kilometer')),
  'count': (*_HUNDREDS, *_THOUSANDS),
  'country': _COUNTRIES,
  'currency': _CURRENCIES,
  'data': _measures((*_TENS, *_HUNDREDS), ('megabyte', 'gigabyte')),
  'date': _days(1990, 2029),
  'days': (
    *_measures(tuple(range(1, 7)), ('day',)),
    *_measures(tuple(range(1, 4)), ('week',)),
    *_MONTHS,
  ),
  'few': tuple(range(2, 100)),
  'height': _measures((*_HUNDREDS, *_THOUSANDS[:80]), ('meter',)),
  'hours': _HOURS,
  'language': _LANGUAGES,
  # In tenths.
  'length': _measures(
    (*range(11, 100), *range(100, 1000, 10)), ('kilometer', 'mile')
  ),
  'month': tuple((y, m) for y in range(1990, 2030) for m in range(1, 13)),
  'number': _log_spaced(100_000, 2500),
  'ordinal': tuple(range(1, 21)),
  # In tenths of a percent.
  'percent': (*range(21, 100), *range(100, 1000, 10)),
  'person': _PEOPLE,
  # In hundredths of the currency.
  'price': _measures(_PRICES, _CURRENCIES),
  'speed': _measures(_TENS, ('kilometer-per-hour', 'mile-per-hour')),
  'temperature': _measures(tuple(range(2, 45)), ('celsius',)),
  'time': tuple((h, m) for h in range(5, 24) for m in range(0, 60, 5)),
  'track': tuple(range(1, 21)),
  'volume': _measures((*_TENS, *_HUNDREDS), ('milliliter', 'centiliter'))
  + _measures(_TENS, ('liter',)),
  'weekday': tuple(range(7)),
  'weight': _measures((*_TENS, *_HUNDREDS), ('gram',))
  + _measures(_TENS, ('kilogram', 'pound', 'ounce')),
  'years': (*_MONTHS, *_measures(tuple(range(1, 31)), ('year',))),
}

_PLAIN_SPACES = str.maketrans('\u00a0\u202f\u2009', '   ')


@functools.cache
def render(family: str, style: str, value: Value, language: str) -> str:
  """Write one value of a family of `VALUES` in one language."""
  locale = babel.Locale.parse(language)
  if family in _QUANTITIES:
    text = _measure(family, value, locale)
  else:
    text = _WRITERS[family](value, locale, style)
  return unicodedata.normalize('NFC', text).translate(_PLAIN_SPACES)


def _date(value: str, locale: babel.Locale, style: str) -> str:
  day = datetime.date.fromisoformat(value)
  return babel.dates.format_date(day, style or 'long', locale=locale)


def _month(value: tuple[int, int], locale: babel.Locale, _: str) -> str:
  day = datetime.date(*value, 1)
  return babel.dates.format_skeleton('yMMMM', day, locale=locale)


def _time(value: tuple[int, int], locale: babel.Locale, _: str) -> str:
  return babel.dates.format_time(datetime.time(*value), 'short', locale=locale)


def _weekday(value: int, locale: babel.Locale, _: str) -> str:
  return babel.dates.get_day_names('wide', locale=locale)[value]


_UNIT_DAYS = {'day': 1, 'week': 7, 'month': 30, 'year': 365}


def _span(value: tuple[int, str], locale: babel.Locale, style: str) -> str:
  """Write a time span: 'ago', 'ahead' or neither."""
  amount, unit = value
  if unit in _UNIT_DAYS:
    length = datetime.timedelta(days=amount * _UNIT_DAYS[unit])
  else:
    length = datetime.timedelta(**{unit + 's': amount})
  return babel.dates.format_timedelta(
    -length if style == 'ago' else length,
    threshold=1,
    add_direction=style != '',
    locale=locale,
  )


def _digits(value: int, locale: babel.Locale, style: str) -> str:
  if style == 'words':
    return _words(value, locale)
  return babel.numbers.format_decimal(value, locale=locale)


def _words(value: int, locale: babel.Locale) -> str:
  text = num2words(value, lang=locale.language)
  if locale.language == 'es':
    # 'uno' is shortened before 'mil' (RAE, Diccionario panhispánico de dudas).
    text = text.replace('veintiuno mil', 'veintiún mil')
    text = text.replace('uno mil', 'un mil')
  if locale.language == 'nl' and value > 1:
    # Only 'één' by itself has accents; a space follows 'duizend' (Taalunie).
    text = text.replace('éé', 'ee').replace('duizend', 'duizend ').strip()
  return text


def _ordinal(value: int, locale: babel.Locale, _: str) -> str:
  """Write the form that stands after 'the' and before a masculine noun."""
  text = num2words(value, lang=locale.language, to='ordinal')
  if locale.language == 'es':
    # One word without the first accent ('decimotercero', 'decimoctavo'), and
    # no final 'o' before the noun: 'decimotercer'. Source: RAE, as above.
    text = re.sub(r'décimo (?=\w)|décimo(?=\w)', 'decimo', text)
    text = text.replace('oo', 'o')
    text = re.sub(r'(primer|tercer)o$', r'\1', text)
  return text


def _percent(value: int, locale: babel.Locale, _: str) -> str:
  return babel.numbers.format_percent(
    decimal.Decimal(value) / 1000, decimal_quantization=False, locale=locale
  )


def _price(value: tuple[int, str], locale: babel.Locale, _: str) -> str:
  hundredths, currency = value
  amount = decimal.Decimal(hundredths) / 100
  return babel.numbers.format_currency(amount, currency, locale=locale)


def _amount(value: tuple[int, str], locale: babel.Locale, _: str) -> str:
  amount, currency = value
  return babel.numbers.format_currency(
    amount, currency, format_type='name', currency_digits=False, locale=locale
  )


def _currency(value: str, locale: babel.Locale, _: str) -> str:
  return babel.numbers.get_currency_name(value, locale=locale)


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


def _measure(family: str, value: Any, locale: babel.Locale) -> str:
  amount, unit = value
  return babel.units.format_unit(
    decimal.Decimal(amount) / 10 if family == 'length' else amount,
    f'{_QUANTITIES[family]}-{unit}',
    length='long',
    locale=locale,
  )


def _language(value: str, locale: babel.Locale, _: str) -> str:
  return locale.languages[value]


_IN = {'de': 'in', 'en': 'in', 'es': 'en', 'fr': 'en', 'nl': 'in'}

# French has 'au' before a masculine name, but 'en' before a vowel.
_FRENCH_AU = names('BR CA CL DK GB JP KE LU MA MX NG NP PE PK PT SN VE VN')


def _country(value: str, locale: babel.Locale, style: str) -> str:
  name, language = locale.territories[value], locale.language
  if not style:
    return name
  with_article = WRITTEN['in_country'][language]
  masculine = language == 'fr' and value in _FRENCH_AU
  preposition = 'au' if masculine else _IN[language]
  return with_article.get(value, f'{preposition} {name}')


_WRITERS: dict[str, Callable[[Any, babel.Locale, str], str]] = {
  **dict.fromkeys(('count', 'few', 'number', 'track'), _digits),
  **dict.fromkeys(('days', 'hours', 'years'), _span),
  'amount': _amount,
  'country': _country,
  'currency': _currency,
  'date': _date,
  'language': _language,
  'month': _month,
  'ordinal': _ordinal,
  'percent': _percent,
  'person': lambda name, *_: name,
  'price': _price,
  'time': _time,
  'weekday': _weekday,
}
