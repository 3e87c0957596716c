"""The section of a report that shows translations side by side."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from sacrebleu.metrics import CHRF

from fusion_jax.analysis.report.findings import Text
from fusion_jax.analysis.report.html import download, element, section
from fusion_jax.analysis.report.marks import Stretch, separator, stretches
from fusion_jax.analysis.report.run import RunReport

# By whether words differ from the reference, and from the first run.
_CLASSES = {
  (True, False): 'off-reference',
  (False, True): 'off-first',
  (True, True): 'off-reference off-first',
}


def translations(runs: Sequence[RunReport], text: Text, shown: int) -> Element:
  """Show lines with source, reference and the translation of every run.

  Args:
    runs: Runs of the page.
    text: Source and reference of every line.
    shown: Number of lines to show, evenly spread over the text.
  """
  chosen = spread(len(text), shown)
  return section(
    'translations',
    'Translations',
    element(
      'p',
      f'{len(chosen)} of {len(text):,} lines, evenly spread. ',
      *_legend(runs),
    ),
    *(_line(runs, text, index) for index in chosen),
    element('p', download('translations.json', _all(runs, text))),
  )


def spread(count: int, shown: int) -> list[int]:
  """Return the indices of lines that are evenly spread over a text."""
  shown = min(count, shown)
  return [place * count // shown for place in range(shown)]


def _legend(runs: Sequence[RunReport]) -> list[Element | str]:
  marked = element('mark', 'Words so', class_='off-reference')
  parts: list[Element | str] = [
    marked,
    ' are not in the reference, or elsewhere in it.',
  ]
  if len(runs) > 1:
    other = element('mark', 'Words so', class_='off-first')
    parts += [' ', other, f' differ from those of {runs[0].name}.']
  return [*parts, ' The number is the chrF of the line.']


def _line(runs: Sequence[RunReport], text: Text, index: int) -> Element:
  source, reference = text[index]
  languages = runs[0].languages
  items = [
    element('dt', f'source, line {index + 1:,}'),
    element('dd', source, lang=languages[0], dir='auto'),
    element('dt', 'reference'),
    element('dd', reference, lang=languages[1], dir='auto'),
  ]
  first = runs[0].translations[index]
  for run in runs:
    made = run.translations[index]
    marked = stretches(made, reference, first, languages[1])
    score = CHRF().sentence_score(made, [reference]).score
    items.append(element('dt', f'{run.name} ({score:.0f})'))
    between = separator(languages[1])
    words = (part for each in marked for part in (_marked(each), between))
    items.append(element('dd', *words, lang=languages[1], dir='auto'))
  return element('dl', *items)


def _marked(stretch: Stretch) -> Element | str:
  name = _CLASSES.get((stretch.off_reference, stretch.off_first))
  return element('mark', stretch.text, class_=name) if name else stretch.text


def _all(runs: Sequence[RunReport], text: Text) -> list[dict]:
  return [
    {
      'line': number,
      'source': source,
      'reference': reference,
      'translations': {r.name: r.translations[number - 1] for r in runs},
    }
    for number, (source, reference) in enumerate(text, start=1)
  ]
