"""The site builds without a warning and needs no network."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from pages import ROOT

# What a browser loads with a page; a link is only followed by a reader.
_LOADED = {'script': 'src', 'img': 'src', 'iframe': 'src', 'link': 'href'}


class _Loads(HTMLParser):
  """Collects the addresses that a page loads."""

  def __init__(self):
    super().__init__()
    self.addresses = []

  def handle_starttag(self, tag, attrs):
    attributes = dict(attrs)
    if tag == 'link' and attributes.get('rel') == 'canonical':
      return
    if address := attributes.get(_LOADED.get(tag, '')):
      self.addresses.append(address)


@pytest.mark.extended
def test_the_site_builds_and_loads_nothing_from_afar(tmp_path):
  subprocess.run(
    [sys.executable, '-m', 'mkdocs', 'build', '--site-dir', tmp_path],
    cwd=ROOT,
    env=os.environ | {'PYTHONPATH': str(ROOT), 'NO_MKDOCS_2_WARNING': '1'},
    check=True,
  )
  pages = sorted(tmp_path.glob('*.html'))
  assert tmp_path / 'options.html' in pages
  for page in pages:
    loads = _Loads()
    loads.feed(page.read_text('utf-8'))
    assert loads.addresses
    for address in loads.addresses:
      assert not re.match(r'(https?:)?//', address), f'{page.name}: {address}'
