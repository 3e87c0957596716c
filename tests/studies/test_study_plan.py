"""Study files: the runs that they ask for, and what is wrong with them."""

from pathlib import Path

import pytest
from tiers import extended_but

from benchmarks.schemes import ONLY_FROM_SCRATCH, norms_of, schemes
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import changed
from fusion_jax.errors import InputError
from fusion_jax.studies import plan

_TINY = {
  'data.tokenizer.vocabulary_size': 100,
  'model.width': 16,
  'model.filter': 64,
  'model.heads': 2,
  'model.encoder_layers': 3,
  'model.decoder_layers': 3,
  'model.norm': 'pre',
}
_HEAD = """
config = "quickstart"
tests = ["embedded:test"]
seeds = [3, 4]
fields.model.width = 16
fields.model.encoder.fusion = "none"
fields.model.decoder.fusion = "none"
[contestants.plain]
"""
_STUDIES = Path(__file__).parents[2] / 'studies'
_FUSED = """
[contestants.fused]
start = "plain"
fields.model.encoder.fusion = "dlcl"
"""


@pytest.fixture
def study(tmp_path):
  def read(text):
    path = tmp_path / 'study.toml'
    path.write_text(text)
    return plan.read(path)

  return read


@pytest.mark.parametrize(
  'name', extended_but([*schemes(3)][1:], ['linear', 'gtrans'])
)
@pytest.mark.parametrize('equal', ['parameters', 'operations'])
def test_a_plain_model_is_as_large_as_any_scheme(name, equal):
  plain = changed(ExperimentConfig(), _TINY)
  fused = changed(plain, schemes(3)[name].row)
  count = plan.parameters if equal == 'parameters' else plan.operations
  alike = plan.matched(plain, fused, equal)
  assert alike.model.encoder.fusion == 'none'
  assert count(alike) == pytest.approx(count(fused), rel=0.01)


def test_more_updates_have_as_many_operations():
  plain = changed(ExperimentConfig(), _TINY)
  wide = changed(plain, {'model.filter': 640})
  longer = plan.matched(plain, wide, 'updates')
  ours, theirs = (
    plan.operations(config) * config.training.steps for config in (longer, wide)
  )
  assert ours == pytest.approx(theirs, rel=1e-3)


def test_runs_come_after_those_that_they_need(study):
  runs = study(
    _HEAD + _FUSED + 'choose = { "optimizer.peak" = [0.1, 0.2] }'
  ).runs
  names = [run.name.partition('-')[0] for run in runs]
  assert names == [
    *('plain/3', 'fused/trial', 'fused/trial', 'fused/3'),
    *('plain/4', 'fused/4'),
  ]
  fused, first = runs[3], runs[1]
  assert fused.needs == (*runs[1:3], runs[0])
  assert first.choice == (('optimizer.peak', 0.1),)
  assert first.config.training.steps == 200
  assert fused.config.model.encoder.start == 'baseline'
  assert runs[5].start is runs[4]


def test_a_digest_is_of_what_alters_a_run(study):
  def digests(text):
    return [run.digest for run in study(text).runs]

  before = digests(_HEAD)
  assert len(set(before)) == 2
  assert digests(_HEAD + '\n[contestants.other]\n')[::2] == before
  moved = _HEAD.replace('[contestants', 'fields.data.root = "x"\n[contestants')
  assert digests(moved) == before
  assert set(digests(_HEAD.replace('16', '32'))).isdisjoint(before)
  assert set(digests('average = 2\n' + _HEAD)).isdisjoint(before)


@pytest.mark.parametrize(
  ('text', 'said'),
  [
    ('contestants = 3', 'config: '),
    ('config = "quickstart"', 'contestants: '),
    ('contests = 3\n' + _HEAD, 'contests: '),
    (_HEAD + '[contestants.plain]', 'not TOML: '),
    ('like = "study.toml"', 'like itself'),
    ('like = "no_study.toml"', 'no_study.toml: cannot be read'),
    ('start = "x"\n' + _HEAD, "'x' is no contestant"),
    # At 2, 3, 4, 6, 8 and 9, the end.
    (
      'average = 7\nfields.training = { steps = 9, save_every = 2, '
      'validate_every = 3, keep_last = 9 }\n' + _HEAD,
      'average: must be at most 6, the checkpoints that plain keeps',
    ),
    (_HEAD + '[contestants.x]\nstart = "x"', 'from itself'),
    (_HEAD + '[contestants.x]\nmatch = { parameters = "y" }', "contestant 'y'"),
    (_HEAD + '[contestants.x]\nmatch = { size = "plain" }', 'match'),
    (_HEAD + '[contestants.x]\nmatch = { updates = "x" }', 'matches nothing'),
    (_HEAD + '[contestants.x]\nfields.model.widht = 3', 'contestants.x'),
    (
      _HEAD + '[contestants.x]\nstart = "nowhere"',
      "'nowhere' is no contestant",
    ),
    (
      _HEAD.replace('embedded:test', 'absent.{lang}'),
      'absent.en: no such file',
    ),
    (
      _HEAD + '[contestants.x]\nstart = "plain"\nfields.model.encoder'
      '.attention = "value_residual"\nfields.model.encoder'
      '.attention_options.kind = "shared"',
      "'baseline' cannot be exact",
    ),
  ],
)
def test_a_wrong_file_is_one_line(study, text, said):
  with pytest.raises(InputError) as caught:
    study(text)
  assert 'study.toml' in str(caught.value)
  assert said in str(caught.value)
  assert '\n' not in str(caught.value)


def _names(path, norm):
  """Return the schemes that a file of studies/ has to have."""
  continued = 'continued' in path.stem
  return {
    name
    for name, scheme in schemes(6).items()
    if norm in norms_of(scheme.row)
    and not (continued and name in ONLY_FROM_SCRATCH)
    and not (norm == 'post' and scheme.row.get('model.norm', norm) != norm)
  } - {'none'}


@pytest.mark.extended
@pytest.mark.parametrize(
  'path', sorted(_STUDIES.glob('*.toml')), ids=lambda path: path.stem
)
def test_the_studies_have_every_scheme(path, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  table = plan._table(path, ())
  for test in table['tests']:
    for language in ('de', 'en', 'ja'):
      file = Path(table['fields']['data']['root'], test.format(lang=language))
      file.parent.mkdir(parents=True, exist_ok=True)
      file.touch()
  study = plan.read(path)
  configs = {run.contestant: run.config for run in study.runs}
  assert study.baseline == 'plain'
  plain = configs['plain']
  names = _names(path, plain.model.norm)
  if path.stem != 'multi30k_post_continued':
    assert names <= configs.keys()
  tuned = {run.contestant for run in study.runs if run.trials}
  for name in names & configs.keys():
    row = schemes(6)[name].row
    made = changed(plain, {'name': name} | row)
    if 'continued' in path.stem:
      made = changed(made, plan.as_the_plain_model(made))
      is_larger = plan.parameters(changed(plain, row)) > plan.parameters(plain)
      assert (name in tuned) == is_larger
    assert configs[name] == changed(made, {'training.seed': 2})


def test_a_file_takes_contestants_of_the_one_that_it_is_like(study, tmp_path):
  (tmp_path / 'first.toml').write_text(_HEAD + _FUSED + '[contestants.other]')
  made = study(
    'like = "first.toml"\ntake = ["plain", "fused"]\nseeds = [5]\n'
    'start = "begin"\nchoose = { "optimizer.peak" = [0.1] }\n'
    'fields.model.width = 32\n'
    'contestants.fused.fields.model.decoder.fusion = "linear"\n'
    'contestants.begin = {}\ncontestants.more = {}'
  )
  plain, fused, begin, more = (run for run in made.runs if not run.choice)
  assert (plain.start, fused.start, more.start) == (None, plain, begin)
  assert begin.start is None
  assert not begin.trials + plain.trials
  assert fused.trials
  assert more.trials
  sides = fused.config.model.encoder, fused.config.model.decoder
  assert [side.fusion for side in sides] == ['dlcl', 'linear']
  assert fused.config.model.width == 32
