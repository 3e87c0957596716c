"""Recipes, runs and results for the tests of the comparison of schemes."""

from pathlib import Path

from benchmarks.comparison.plan import Chosen, Entry, plan
from benchmarks.comparison.recipe import PHASES, read

RECIPE = """
config = 'multi30k:en-de'
tests = ['test_*.{lang}.gz']
average = 2
[runs]
norms = ['pre', 'post']
seeds = [0, 1]
[tuning]
seed = 0
rates = [0.3, 1.0]
[fields]
model.width = 16
model.filter = 32
model.heads = 2
[phases.plain]
training.steps = 200
[phases.continued]
training.steps = 50
optimizer.peak = 1e-3
[phases.tuning]
training.steps = 10
[corpora.multi30k]
[corpora.other]
config = 'multi30k:de-en'
[corpora.other.phases.continued]
training.steps = 60
"""

PLAIN = Entry('none')
LINEAR = Entry('linear', is_tuned=True)
DENSE = Entry('dense')
REZERO = Entry('rezero', has_norm=True)
SHARED = Entry('value_residual_shared')
WIDE = Entry('wide')
ENTRIES = (PLAIN, LINEAR, DENSE, REZERO, WIDE)

# What every result has, beside what a test says.
NUMBERS = {
  'parameters': 1_000,
  'fusion_rate': None,
  'validation_nll': 2.0,
  'tests': {},
  'telemetry': {},
  'cpu': 'a processor',
  'cores': 2,
  'device': 'cpu 1',
  'jax': '0.10.2',
}


def recipe(folder: Path, text: str = RECIPE, corpus: str = 'multi30k'):
  """The recipe of a text."""
  path = folder / 'recipe.toml'
  path.write_text(text)
  return read(path, corpus)


def planned(of, entries=ENTRIES, phases=PHASES, norms=('pre',), seeds=(0,)):
  """The runs of a recipe, by name."""
  runs = plan(of, entries, Chosen(phases, norms, seeds))
  return {run.name: run for run in runs}
