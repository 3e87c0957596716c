"""The guide: its README, its site, and the code that its readers run."""

import gzip
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from html.parser import HTMLParser

import pytest
from pages import PAGES, ROOT

from fusion_jax.config.flags import load_config
from fusion_jax.studies import plan


def test_the_readme_has_at_most_nine_hundred_words():
  text = (ROOT / 'README.md').read_text('utf-8')
  assert len(re.sub('[|*`#<>-]', ' ', text).split()) <= 900


def test_the_links_of_the_readme_lead_to_files():
  text = (ROOT / 'README.md').read_text('utf-8')
  links = re.findall(r'\]\(([^)#]+)', text)
  for link in links:
    assert link.startswith('https://') or (ROOT / link).is_file(), link


def test_the_readme_links_to_every_page():
  text = (ROOT / 'README.md').read_text('utf-8')
  pages = {path.name for path in (ROOT / 'docs').glob('*.md')}
  linked = set(re.findall(r'\(docs/([\w.]+\.md)', text))
  assert linked == pages - {'index.md'}


def test_the_guide_counts_the_variants_of_the_configs():
  text = (ROOT / 'docs/data.md').read_text('utf-8')
  counts = dict(re.findall(r'^\| `(\w+)` \|[^|]*\| (\d+):', text, re.M))
  assert counts == {
    name: str(
      len(runpy.run_path(str(ROOT / f'configs/{name}.py'))['_VARIANTS'])
    )
    for name in ('iwslt14_deen', 'wmt14_ende', 'wmt17_zhen')
  }


def test_files_that_developers_are_told_of_exist():
  for page in ('CONTRIBUTING.md', 'docs/architecture.md'):
    text = (ROOT / page).read_text('utf-8')
    for name in re.findall(
      r'(?:`|\+\+\+ )([\w/]+\.(?:py|toml|md|yml))\b', text
    ):
      places = ROOT / name, ROOT / 'fusion_jax' / name
      assert any(place.is_file() for place in places), name


def test_configs_of_the_guide_are_configs(tmp_path):
  configs = [
    block
    for page in PAGES
    for block in re.findall(
      '```python\n(.*?)```', (ROOT / page).read_text('utf-8'), re.DOTALL
    )
    if 'def get_config' in block
  ]
  for number, block in enumerate(configs):
    path = tmp_path / f'config_{number}.py'
    path.write_text(block)
    assert load_config(str(path)).data.all_directions
  assert len(configs) == 2


def test_the_guide_has_the_losses_of_all_deep_stacks():
  text = (ROOT / 'docs/deep_stacks.md').read_text('utf-8')
  losses = {}
  for name in ('deep_stacks', 'deep_stacks_later'):
    path = ROOT / f'benchmarks/results/{name}.json'
    for stack, run in json.loads(path.read_text())['rounds'].items():
      losses[stack] = f'{run["valid"]:.3f}'
  rows = re.findall(r'^\| .* \| (?:post|pre|none) \| (.*)$', text, re.M)
  shown = [
    re.findall(r'[\d.]+', cell) for row in rows for cell in row.split('|')[:3]
  ]
  assert sorted(x for cell in shown for x in cell) == sorted(losses.values())
  (count,) = re.findall(r'Here (\d+)\s+stacks', text)
  assert len(rows) == len({stack.split('/')[1] for stack in losses})
  assert int(count) == len(rows)


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


def _blocks() -> list[str]:
  """The Python files of the tutorial, in order."""
  text = (ROOT / 'docs' / 'tutorial.md').read_text('utf-8')
  return re.findall(r'```python\n(.*?)```', text, re.S)


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """An empty folder to work in."""
  monkeypatch.chdir(tmp_path)
  return tmp_path


def test_the_corpus_is_parallel(folder):
  writer, _ = _blocks()
  exec(writer.replace('50_000', '50'), {})
  lines = {
    path.name: path.read_text('utf-8').splitlines()
    for path in folder.glob('corpus/*')
  }
  assert {name: len(text) for name, text in lines.items()} == {
    f'{split}.{language}': pairs
    for split, pairs in (('train', 50), ('valid', 500), ('test', 500))
    for language in ('en', 'fr')
  }
  assert lines['train.en'] != lines['train.fr']


def test_the_config_names_these_files(folder):
  _, config = _blocks()
  (folder / 'mine.py').write_text(config, 'utf-8')
  data = load_config('mine.py').data
  assert data.train == ('corpus/train.{lang}',)
  assert (data.source_language, data.target_language) == ('en', 'fr')


def test_the_study_has_matched_contestants(folder):
  text = (ROOT / 'docs' / 'tutorial.md').read_text('utf-8')
  (file,) = re.findall(r'```toml\n(.*?)```', text, re.S)
  (folder / 'hour.toml').write_text(file, 'utf-8')
  (folder / 'multi30k').mkdir()
  for test in tomllib.loads(file)['tests']:
    for language in ('en', 'de'):
      path = folder / 'multi30k' / test.format(lang=language)
      path.write_bytes(gzip.compress(b'x\n'))
  study = plan.read(folder / 'hour.toml')
  assert len(study.runs) == 15
  assert abs(plan.deviations(study, 'wide')['parameters']) < 0.01


_NOTEBOOK = ROOT / 'docs' / 'tutorial.ipynb'
_SHORTER = {
  "'name': 'mine'": "'name': 'mine', 'data.batch.shapes': 1, 'model.width': 32",
  'STEPS = 400': 'STEPS = 4',
  'PAIRS = 50_000': 'PAIRS = 6_000',
  "('valid', 500), ('test', 200)": "('valid', 20), ('test', 20)",
}


@pytest.mark.extended
@pytest.mark.filterwarnings('default')
def test_every_cell_runs(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  cells = json.loads(_NOTEBOOK.read_text())['cells']
  code = '\n'.join(
    ''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code'
  )
  for long, short in _SHORTER.items():
    assert long in code
    code = code.replace(long, short)
  exec(compile(code, str(_NOTEBOOK), 'exec'), {})
  out = capsys.readouterr().out
  assert "got 'liner'; did you mean 'linear'?" in out
  assert 'fused: BLEU = ' in out
  assert 'log p = -' in out
