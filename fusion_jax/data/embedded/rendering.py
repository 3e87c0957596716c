"""Values written as text by Babel (CLDR) and num2words, with corrections."""

import datetime
import decimal
import functools
import re
import unicodedata
from collections.abc import Callable

import babel
import babel.dates
import babel.numbers
import babel.units
from num2words import num2words

from fusion_jax.data.embedded.values import Value, names

LANGUAGES = ('de', 'en', 'es', 'fr', 'nl')

_PLAIN_SPACES = str.maketrans('\u00a0\u202f\u2009', '   ')


@functools.cache
def render(family: str, style: str, value: Value, language: str) -> str:
  """Write one value of a family of `values.VALUES` in one language."""
  locale = babel.Locale.parse(language)
  text = _RENDERERS[family, style](value, locale)
  return unicodedata.normalize('NFC', text).translate(_PLAIN_SPACES)


def _date(style: str) -> Callable[[str, babel.Locale], str]:
  def write(value: str, locale: babel.Locale) -> str:
    day = datetime.date.fromisoformat(value)
    return babel.dates.format_date(day, style, locale=locale)

  return write


def _month(value: tuple[int, int], locale: babel.Locale) -> str:
  day = datetime.date(*value, 1)
  return babel.dates.format_skeleton('yMMMM', day, locale=locale)


def _time(value: tuple[int, int], locale: babel.Locale) -> str:
  return babel.dates.format_time(datetime.time(*value), 'short', locale=locale)


def _weekday(value: int, locale: babel.Locale) -> str:
  return babel.dates.get_day_names('wide', locale=locale)[value]


_UNIT_DAYS = {'day': 1, 'week': 7, 'month': 30, 'year': 365}


def _span(direction: int) -> Callable[[tuple[int, str], babel.Locale], str]:
  """Return a writer of time spans: -1 'ago', 1 'from now', 0 neither."""

  def write(value: tuple[int, str], locale: babel.Locale) -> str:
    amount, unit = value
    if unit in _UNIT_DAYS:
      length = datetime.timedelta(days=amount * _UNIT_DAYS[unit])
    else:
      length = datetime.timedelta(**{unit + 's': amount})
    return babel.dates.format_timedelta(
      length * (direction or 1),
      threshold=1,
      add_direction=direction != 0,
      locale=locale,
    )

  return write


def _digits(value: int, locale: babel.Locale) -> str:
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


def _ordinal(value: int, locale: babel.Locale) -> str:
  """Write the form that stands after 'the' and before a masculine noun."""
  text = num2words(value, lang=locale.language, to='ordinal')
  if locale.language == 'es':
    # One word without the first accent ('decimotercero', 'decimoctavo'), and
    # no final 'o' before the noun: 'decimotercer'. Source: RAE, as above.
    text = re.sub(r'décimo (?=\w)|décimo(?=\w)', 'decimo', text)
    text = text.replace('oo', 'o')
    text = re.sub(r'(primer|tercer)o$', r'\1', text)
  return text


def _percent(value: int, locale: babel.Locale) -> str:
  return babel.numbers.format_percent(
    decimal.Decimal(value) / 1000, decimal_quantization=False, locale=locale
  )


def _price(value: tuple[int, str], locale: babel.Locale) -> str:
  hundredths, currency = value
  amount = decimal.Decimal(hundredths) / 100
  return babel.numbers.format_currency(amount, currency, locale=locale)


def _amount(value: tuple[int, str], locale: babel.Locale) -> str:
  amount, currency = value
  return babel.numbers.format_currency(
    amount, currency, format_type='name', currency_digits=False, locale=locale
  )


def _currency(value: str, locale: babel.Locale) -> str:
  return babel.numbers.get_currency_name(value, locale=locale)


def _measure(
  quantity: str, tenths: bool = False
) -> Callable[[tuple[int, str], babel.Locale], str]:
  def write(value: tuple[int, str], locale: babel.Locale) -> str:
    amount, unit = value
    return babel.units.format_unit(
      decimal.Decimal(amount) / 10 if tenths else amount,
      f'{quantity}-{unit}',
      length='long',
      locale=locale,
    )

  return write


def _country(value: str, locale: babel.Locale) -> str:
  return locale.territories[value]


def _language(value: str, locale: babel.Locale) -> str:
  return locale.languages[value]


_IN = {'de': 'in', 'en': 'in', 'es': 'en', 'fr': 'en', 'nl': 'in'}

# French has 'au' before a masculine name, but 'en' before a vowel.
_FRENCH_AU = names('BR CA CL DK GB JP KE LU MA MX NG NP PE PK PT SN VE VN')

# Country names that need an article.
_IN_ARTICLE = {
  ('de', 'CH'): 'in der Schweiz',
  ('de', 'GB'): 'im Vereinigten Königreich',
  ('de', 'NL'): 'in den Niederlanden',
  ('de', 'SK'): 'in der Slowakei',
  ('de', 'TR'): 'in der Türkei',
  ('de', 'UA'): 'in der Ukraine',
  ('de', 'US'): 'in den Vereinigten Staaten',
  ('en', 'GB'): 'in the United Kingdom',
  ('en', 'NL'): 'in the Netherlands',
  ('en', 'US'): 'in the United States',
  ('es', 'GB'): 'en el Reino Unido',
  ('es', 'NL'): 'en los Países Bajos',
  ('fr', 'NL'): 'aux Pays-Bas',
  ('fr', 'US'): 'aux États-Unis',
  ('nl', 'GB'): 'in het Verenigd Koninkrijk',
  ('nl', 'US'): 'in de Verenigde Staten',
}


def _in_country(value: str, locale: babel.Locale) -> str:
  language = locale.language
  if (language, value) in _IN_ARTICLE:
    return _IN_ARTICLE[language, value]
  masculine = language == 'fr' and value in _FRENCH_AU
  preposition = 'au' if masculine else _IN[language]
  return f'{preposition} {_country(value, locale)}'


def _as_is(value: str, locale: babel.Locale) -> str:
  del locale
  return value


_RENDERERS: dict[tuple[str, str], Callable[..., str]] = {
  ('amount', ''): _amount,
  ('area', ''): _measure('area'),
  ('count', ''): _digits,
  ('country', ''): _country,
  ('country', 'in'): _in_country,
  ('currency', ''): _currency,
  ('data', ''): _measure('digital'),
  ('date', ''): _date('long'),
  ('date', 'full'): _date('full'),
  ('date', 'medium'): _date('medium'),
  ('date', 'short'): _date('short'),
  ('days', 'ago'): _span(-1),
  ('days', 'ahead'): _span(1),
  ('few', ''): _digits,
  ('height', ''): _measure('length'),
  ('hours', ''): _span(0),
  ('hours', 'ago'): _span(-1),
  ('hours', 'ahead'): _span(1),
  ('language', ''): _language,
  ('length', ''): _measure('length', tenths=True),
  ('month', ''): _month,
  ('number', ''): _digits,
  ('number', 'words'): _words,
  ('ordinal', ''): _ordinal,
  ('percent', ''): _percent,
  ('person', ''): _as_is,
  ('price', ''): _price,
  ('speed', ''): _measure('speed'),
  ('temperature', ''): _measure('temperature'),
  ('time', ''): _time,
  ('track', ''): _digits,
  ('volume', ''): _measure('volume'),
  ('weekday', ''): _weekday,
  ('weight', ''): _measure('mass'),
  ('years', 'ago'): _span(-1),
}
