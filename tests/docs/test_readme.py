"""The README is short; the guide has the rest."""

import re

from pages import ROOT


def test_it_has_at_most_nine_hundred_words():
  text = (ROOT / 'README.md').read_text('utf-8')
  assert len(re.sub('[|*`#<>-]', ' ', text).split()) <= 900


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
