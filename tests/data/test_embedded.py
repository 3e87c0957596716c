"""The embedded corpus: its text, its splits, what it refuses."""

import hashlib
import itertools
import unicodedata

import pytest
from tiers import extended_but

from fusion_jax.data import embedded
from fusion_jax.data.embedded import FRAMES, rendering
from fusion_jax.errors import InputError

PAIRS_OF_LANGUAGES = list(itertools.permutations(embedded.LANGUAGES, 2))


def _contents(split, count, seed=0):
  return list(embedded._contents(split, count, seed))


def _values(split, count, seed=0):
  return {tuple(sorted(c)) for _, c in _contents(split, count, seed)}


def test_the_draw_is_the_same_on_every_machine_and_python():
  # Made with Python 3.11.7 by this very expression. It knows no Babel: a new
  # value here means that a corpus of the same seed is another one, and
  # `embedded.VERSION` has to count on.
  drawn = repr([content for _, content in _contents('train', 1000)])
  digest = hashlib.sha256(drawn.encode()).hexdigest()
  assert digest[:16] == 'e6f0e890981f200a'


def test_no_combination_of_values_is_in_two_splits():
  train = _values('train', 10_000) | _values('train', 2_000, seed=1)
  valid = _values('valid', 600) | _values('valid', 200, seed=2)
  test = _values('test', 600) | _values('test', 200, seed=3)
  assert not train & valid
  assert not train & test
  assert not valid & test


def test_the_split_knows_neither_order_nor_frame():
  content = (('language', 'de'), ('language', 'fr'), ('count', 100))
  splits = {
    embedded.split_of(order) for order in itertools.permutations(content)
  }
  assert len(splits) == 1


@pytest.mark.parametrize(
  ('source', 'target'),
  extended_but(PAIRS_OF_LANGUAGES, list(PAIRS_OF_LANGUAGES)[::5]),
)
def test_a_pair_of_languages_gives_parallel_text(source, target):
  forward = list(embedded.generate(source, target, 'valid', 200))
  backward = list(embedded.generate(target, source, 'valid', 200))
  assert forward == [(a, b) for b, a in backward]
  assert sum(a == b for a, b in forward) == 0


_STYLES = sorted(
  {
    (slot.rstrip('123'), style)
    for frame in FRAMES
    for _, slot, style in frame.parts['en']
    if slot
  }
)


@pytest.mark.parametrize(('family', 'style'), _STYLES)
def test_two_values_are_never_written_alike(family, style):
  # Every 7th date: 2,019 of them, in all months and years.
  some = rendering.VALUES[family][:: 7 if family == 'date' else 1]
  for language in embedded.LANGUAGES:
    texts = {rendering.render(family, style, v, language) for v in some}
    assert len(texts) == len(some)


def test_a_frame_has_the_same_slots_in_all_languages():
  for frame in FRAMES:
    assert set(frame.parts) == set(embedded.LANGUAGES)
    for parts in frame.parts.values():
      slots = sorted(slot for _, slot, _ in parts if slot)
      english = sorted(slot for _, slot, _ in frame.parts['en'] if slot)
      assert slots == english
      assert set(slots) == set(frame.families)


@pytest.mark.parametrize('language', embedded.LANGUAGES)
def test_the_text_is_plain(language):
  other = 'en' if language != 'en' else 'de'
  for text, _ in embedded.generate(language, other, 'train', 2_000):
    assert text == unicodedata.normalize('NFC', text)
    assert text == ' '.join(text.split(' ')).strip()
    assert text[0] == text[0].upper()
    # 'C': control, format, unassigned; 'Z' other than U+0020: other spaces.
    odd = {c for c in text if unicodedata.category(c)[0] in 'CZ'} - {' '}
    assert not odd, (text, odd)


# Looked up by hand in CLDR 47, common/main/{de,en,es,fr,nl}.xml: date formats
# of the Gregorian calendar, territories, languages, units, relative times,
# number patterns; no-break spaces as plain ones.
_IN_FULL = 'Freitag, 3. Mai 2024', 'Friday, May 3, 2024'
CLDR = [
  ('date', '', '2024-05-03', ('3. Mai 2024', 'May 3, 2024')),
  ('date', 'full', '2024-05-03', _IN_FULL),
  ('date', 'short', '2024-12-31', ('31.12.24', '12/31/24')),
  ('month', '', (2024, 3), ('März 2024', 'March 2024')),
  ('time', '', (15, 5), ('15:05', '3:05 PM')),
  ('hours', 'ago', (5, 'minute'), ('vor 5 Minuten', '5 minutes ago')),
  ('days', 'ahead', (11, 'month'), ('in 11 Monaten', 'in 11 months')),
  ('percent', '', 85, ('8,5 %', '8.5%')),
  ('price', '', (1250, 'EUR'), ('12,50 €', '€12.50')),
  ('length', '', (85, 'kilometer'), ('8,5 Kilometer', '8.5 kilometers')),
  ('count', '', 12_000, ('12.000', '12,000')),
]


@pytest.mark.parametrize(('family', 'style', 'value', 'expected'), CLDR)
def test_values_are_written_as_in_cldr(family, style, value, expected):
  assert value in rendering.VALUES[family]
  written = [rendering.render(family, style, value, x) for x in ('de', 'en')]
  assert written == list(expected)


# By hand. Spanish: RAE, Diccionario panhispánico de dudas, 'cardinales' and
# 'ordinales'; Dutch: Taalunie, leidraad 6.9; both where num2words 0.5.14 slips
# ('veintiuno mil', 'décimo tercero', 'tweeduizendéén').
_GRAMMAR = """
number words 21345 es veintiún mil trescientos cuarenta y cinco
number words 31000 es treinta y un mil
number words 21 es veintiuno
number words 2001 nl tweeduizend een
number words 1 nl één
number words 12345 nl twaalfduizend driehonderdvijfenveertig
number words 1071 fr mille soixante et onze
number words 80 fr quatre-vingts
number words 321 de dreihunderteinundzwanzig
number words 321 en three hundred and twenty-one
ordinal - 1 es primer
ordinal - 13 es decimotercer
ordinal - 18 es decimoctavo
ordinal - 8 nl achtste
ordinal - 1 fr premier
country in CH de in der Schweiz
country in JP fr au Japon
country in US fr aux États-Unis
country in EC fr en Équateur
"""


@pytest.mark.parametrize('case', _GRAMMAR.strip().splitlines())
def test_words_follow_the_grammar(case):
  family, style, value, language, expected = case.split(maxsplit=4)
  value = int(value) if value.isdigit() else value
  written = rendering.render(family, style.strip('-'), value, language)
  assert written == expected


def test_a_sentence_in_all_languages():
  # The frame by hand, its values from CLDR 47.
  content = (('country', 'NL'), ('date', '2024-05-03'), ('time', (15, 5)))
  sentences = {
    language: embedded._sentence(FRAMES[0], content, language)
    for language in embedded.LANGUAGES
  }
  assert sentences == {
    'de': 'Die Sitzung in den Niederlanden beginnt am 3. Mai 2024 '
    'um 15:05 Uhr.',
    'en': 'The meeting in the Netherlands begins on May 3, 2024 at 3:05 PM.',
    'es': 'La reunión en los Países Bajos comienza el 3 de mayo de 2024 '
    'a las 15:05.',
    'fr': 'La réunion aux Pays-Bas commence le 3 mai 2024 à 15:05.',
    'nl': 'De vergadering in Nederland begint op 3 mei 2024 om 15:05 uur.',
  }


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (('en', 'xx', 'train', 1), "no language 'xx'; it has de, en, es, fr, nl"),
    (('EN', 'de', 'train', 1), "no language 'EN'; it has de, en, es, fr, nl"),
    (('en', 'de', 'dev', 1), "no split 'dev'; it has train, valid, test"),
    (('en', 'de', 'test', 25_001), '25,001 pairs asked for in test'),
    (('en', 'de', 'train', -1), '-1 pairs asked for in train'),
  ],
)
def test_a_mistake_ends_in_one_line(arguments, message):
  with pytest.raises(InputError) as error:
    embedded.generate(*arguments)
  assert message in str(error.value)
  assert '\n' not in str(error.value)
