"""Study files: the runs that they ask for, and what is wrong with them."""

import pytest

from benchmarks.schemes import schemes
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


@pytest.mark.parametrize('name', [*schemes(3)][1:])
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
