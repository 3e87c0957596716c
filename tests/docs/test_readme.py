"""The README is short; the guide has the rest."""

import re

from pages import ROOT

_TABLES = re.compile(
  '<!-- comparison of schemes: starts -->.*<!-- end of the comparison -->', re.S
)


def test_it_has_at_most_a_thousand_words():
  text = (ROOT / 'README.md').read_text('utf-8')
  # The words of the table between the markers do not count.
  own, tables = _TABLES.subn('', text)
  assert tables == 1
  assert len(own.split()) <= 1_000


def test_its_links_lead_to_files():
  text = (ROOT / 'README.md').read_text('utf-8')
  links = re.findall(r'\]\(([^)#]+)', text)
  for link in links:
    assert link.startswith('https://') or (ROOT / link).is_file(), link


def test_it_links_to_every_page():
  text = (ROOT / 'README.md').read_text('utf-8')
  pages = {path.name for path in (ROOT / 'docs').glob('*.md')}
  linked = set(re.findall(r'\(docs/([\w.]+\.md)', text))
  assert linked == pages - {'index.md'}
