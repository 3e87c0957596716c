"""A report in a real browser: its width on a phone, its colours, its images.

The page is put into a frame, and a script beside the frame measures it.
"""

import html
import json
import re
import shutil
import subprocess

import pytest
from report_runs import TEXT, fused_run, report_of

from fusion_jax.analysis.report import contents
from fusion_jax.analysis.report.page import page
from fusion_jax.analysis.views import VIEWS

_CHROMIUM = shutil.which('chromium')
pytestmark = pytest.mark.skipif(
  _CHROMIUM is None, reason='chromium is not installed'
)

# Of an iPhone 12, in CSS pixels.
_PHONE = 390
# A line that has no space to break it at.
_LONG = 'Donaudampfschifffahrts' * 12
_HARNESS = """<!DOCTYPE html>
<iframe srcdoc="{page}" style="width: {width}px; height: 800px"></iframe>
<pre id="found"></pre>
<script>
const frame = document.querySelector('iframe')
frame.addEventListener('load', () => {{
  const page = frame.contentDocument
  const style = (name) => getComputedStyle(page.querySelector(name))
  const found = {{
    inner: page.documentElement.clientWidth,
    whole: page.documentElement.scrollWidth,
    sections: [...page.querySelectorAll('section')].map((s) => s.id),
    images: [...page.images].map((i) => [i.naturalWidth, i.clientWidth]),
    ink: style('body').color,
    paper: style('body').backgroundColor,
    card: style('figure .scroll').backgroundColor,
    mark: style('mark').backgroundColor,
    scripts: page.scripts.length,
  }}
  document.getElementById('found').textContent = JSON.stringify(found)
}})
</script>
"""


@pytest.fixture(scope='module')
def comparison(tmp_path_factory):
  """A page of two runs."""
  folder = tmp_path_factory.mktemp('run')
  analysed = fused_run(folder)
  with pytest.MonkeyPatch.context() as patch:
    every = [VIEWS['curves'], VIEWS['gradients']]
    patch.setattr(contents, 'views_of', lambda config: every)
    seen = list(contents.cards(analysed, folder, False))
  text = [*TEXT, (f'a {_LONG}', f'ein {_LONG}')]
  runs = [
    report_of(
      analysed, seen, name, [*(line for _, line in TEXT), f'eine {_LONG}'], text
    )
    for name in ('one', f'two_{"long" * 8}')
  ]
  return page(runs, text, 'the text', 9, {'jax': '1'})


def _measured(whole, folder, width, *flags):
  harness = folder / 'harness.html'
  harness.write_text(_HARNESS.format(page=html.escape(whole), width=width))
  command = [
    _CHROMIUM,
    '--headless',
    '--no-sandbox',
    '--disable-gpu',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--no-first-run',
    f'--user-data-dir={folder / "profile"}',
    '--window-size=1400,900',
    *flags,
    '--virtual-time-budget=10000',
    '--dump-dom',
    f'file://{harness}',
  ]
  done = subprocess.run(
    command, capture_output=True, text=True, timeout=120, check=True
  )
  found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
  return json.loads(html.unescape(found[1]))


def _brightness(colour):
  """The mean of red, green and blue of 'rgb(1, 2, 3)', from 0 to 255."""
  numbers = list(map(int, re.findall(r'\d+', colour)[:3]))
  return sum(numbers) / 3


# Blink's numbers of preferredColorScheme.
_DARK, _LIGHT = 0, 1


@pytest.mark.parametrize(
  ('width', 'scheme'), [(_PHONE, _LIGHT), (_PHONE, _DARK), (1280, _DARK)]
)
def test_a_page_fits_and_is_legible(width, scheme, comparison, tmp_path):
  flag = f'--blink-settings=preferredColorScheme={scheme}'
  found = _measured(comparison, tmp_path, width, flag)
  assert width - 20 <= found['inner'] <= width
  assert found['whole'] == found['inner']
  assert len(found['sections']) == 9
  # The curves, and the gradients of both runs.
  assert len(found['images']) == 1 + 2
  assert all(natural > 100 for natural, _ in found['images'])
  assert all(shown > 300 for _, shown in found['images'])
  ink, paper = _brightness(found['ink']), _brightness(found['paper'])
  assert (
    (ink > 200 and paper < 40) if scheme == _DARK else ink < 60 < 250 < paper
  )
  assert _brightness(found['card']) == 255
  assert abs(_brightness(found['mark']) - ink) > 100
  assert found['scripts'] == 0
