"""The HTML page of a report, which needs no other file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

from fusion_jax.analysis.report import about, findings, lines
from fusion_jax.analysis.report.findings import Text
from fusion_jax.analysis.report.html import document, element
from fusion_jax.analysis.report.run import RunReport

_STYLE = Path(__file__).with_name('report.css')
# A browser that follows this policy fetches nothing for the page.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(
  runs: Sequence[RunReport],
  text: Text,
  text_name: str,
  shown: int,
  versions: Mapping[str, str],
) -> str:
  """Make the page of one run, or the comparison of several.

  Args:
    runs: Runs in the order of the page; others are compared with the first.
    text: Source and reference of every line.
    text_name: Name of the text.
    shown: Number of lines whose translations are shown.
    versions: Result of `report.run.environment`.

  Returns:
    The page as HTML.
  """
  sections = [
    about.overview(runs),
    findings.scores(runs, text, text_name),
    findings.lengths(runs, text),
    findings.training(runs),
    findings.views(runs),
    lines.translations(runs, text, shown),
    about.options(runs),
    about.data(runs),
    about.parameters(runs),
    about.environment(runs, versions),
  ]
  title = ', '.join(run.name for run in runs)
  main = element('main', element('h1', title), _contents(sections), *sections)
  return document(
    element('html', _head(title), element('body', main), lang='en')
  )


def _head(title: str) -> Element:
  metas = (
    {'charset': 'utf-8'},
    {'name': 'viewport', 'content': 'width=device-width, initial-scale=1'},
    {'http-equiv': 'Content-Security-Policy', 'content': _POLICY},
    {'name': 'color-scheme', 'content': 'light dark'},
  )
  return element(
    'head',
    *(Element('meta', each) for each in metas),
    element('title', f'{title} - fusion_jax'),
    element('style', _STYLE.read_text(encoding='utf-8')),
  )


def _contents(sections: Sequence[Element]) -> Element:
  links = (
    element('li', element('a', each[0].text or '', href=f'#{each.get("id")}'))
    for each in sections
  )
  return element('nav', element('ul', *links), aria_label='sections')
