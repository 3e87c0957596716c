"""The recipe of the comparison: resolved, digested, refused."""

import dataclasses
import tomllib

import pytest
from small_comparison import RECIPE, recipe

from benchmarks.comparison.recipe import PHASES, read
from benchmarks.comparison.recipe import RECIPE as FROZEN
from fusion_jax.errors import InputError


@pytest.mark.parametrize('corpus', tomllib.loads(FROZEN.read_text())['corpora'])
def test_the_frozen_recipe_has_every_corpus(corpus):
  frozen = read(FROZEN, corpus)
  assert frozen.phases['scratch'] == frozen.phases['plain']
  plain, continued = frozen.phases['plain'], frozen.phases['continued']
  # As many checkpoints as are averaged exist and are kept.
  for config in (plain, continued):
    training = config.training
    assert training.steps // training.save_every >= frozen.average
    assert training.keep_last >= frozen.average
  # A run starts from the only validated checkpoint, the last one.
  assert plain.training.validate_every == plain.training.steps


def test_tuning_is_continued_but_for_its_own_fields(tmp_path):
  phases = recipe(tmp_path).phases
  assert phases['tuning'].optimizer == phases['continued'].optimizer
  assert phases['tuning'].training.steps == 10


def test_a_corpus_changes_its_part_alone(tmp_path):
  own, other = recipe(tmp_path), recipe(tmp_path, corpus='other')
  assert other.phases['continued'].training.steps == 60
  assert other.phases['plain'].data.source_language == 'de'
  assert other.phases['plain'].training == own.phases['plain'].training


def test_a_corpus_changes_the_one_that_it_is_like(tmp_path):
  own = """
[corpora.third]
like = 'other'
[corpora.third.phases.continued]
training.save_every = 7
"""
  other = recipe(tmp_path, corpus='other').phases['continued']
  third = recipe(tmp_path, RECIPE + own, 'third').phases['continued']
  assert other.training.save_every != 7
  assert third.data == other.data
  changed = dataclasses.replace(other.training, save_every=7)
  assert third.training == changed


def test_the_digest_is_of_what_alters_a_run(tmp_path):
  before = recipe(tmp_path).digest('pre')
  more_seeds = RECIPE.replace('seeds = [0, 1]', 'seeds = [0, 1, 2, 3]')
  more = recipe(tmp_path, f'# A note.\n{more_seeds}')
  assert more.digest('pre') == before
  for old, new in (
    ('steps = 50', 'steps = 51'),
    ('rates = [0.3, 1.0]', 'rates = [0.3]'),
    ('average = 2', 'average = 3'),
    ('model.heads = 2', 'model.heads = 4'),
    ('multi30k:en-de', 'multi30k:en-fr'),
  ):
    other = recipe(tmp_path, RECIPE.replace(old, new))
    assert other.digest('pre') != before


def test_what_one_norm_has_alters_its_runs_alone(tmp_path):
  plain = recipe(tmp_path)
  own = recipe(
    tmp_path, f"{RECIPE}\n[norms.post]\nmodel.initialization = 'glorot'\n"
  )
  assert own.digest('pre') == plain.digest('pre')
  assert own.digest('post') != plain.digest('post')
  for phase in PHASES:
    assert own.phase(phase, 'pre') == plain.phases[phase]
    assert own.phase(phase, 'post').model.initialization == 'glorot'


def _like(corpus):
  own = '[corpora.multi30k]'
  return RECIPE.replace(own, f'{own}\nlike = {corpus!r}')


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (RECIPE.replace('model.width', 'model.widht'), r'config\.model\.widht'),
    (RECIPE.replace('average = 2', ''), "lacks 'average'"),
    (f'{RECIPE}\n[norms.post]\nmodel.size = 2\n', r'config\.model\.size'),
    (f'{RECIPE}\n[norms.pos]\nmodel.heads = 2\n', 'norms.pos: .* pre or post'),
    (RECIPE.replace("norms = ['pre'", "norms = ['per'"), "runs.norms: .*'per'"),
    (f'extra = 1\n{RECIPE}', "no section 'extra' is known"),
    (f'average = \n{RECIPE}', 'not readable'),
    (RECIPE.replace('[corpora.multi30k]', ''), "no corpus 'multi30k'"),
    (_like('news'), "corpora.multi30k.like: .* no corpus 'news'; it has other"),
    (_like('multi30k'), "no corpus 'multi30k'; it has other"),
  ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path, text, message):
  with pytest.raises(InputError, match=message) as error:
    recipe(tmp_path, text)
  assert 'recipe.toml' in str(error.value)
  assert '\n' not in str(error.value)
