"""Values that fill the slots, independent of language.

There are few names, so that each is seen often; a held-out sentence is new in
its combination of values.
"""

import datetime

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
