"""A study of tiny models from its file to the page, against sacreBLEU."""

import csv
import json

import pytest
import sacrebleu
from tiny_run import TINY

import fusion_jax
from fusion_jax.data.corpora import open_corpus
from fusion_jax.studies import plan
from fusion_jax.studies.carry_out import Folder

pytestmark = pytest.mark.extended

_TEST = 'embedded:test'
_HEAD = f"""
config = "quickstart"
seeds = [0, 1]
tests = ["{_TEST}"]
average = 2
choice_steps = 2
keep_checkpoints = false
[contestants.plain]
[contestants.fused]
start = "plain"
choose = {{ "optimizer.fusion_rate" = [0.5] }}
fields.model.encoder.fusion = "transparent"
[contestants.broken]
match = {{ parameters = "fused" }}
fields.data.tokenizer.vocabulary_size = 20
[fields]
model.encoder.fusion = "none"
model.decoder.fusion = "none"
decoding.beam_size = 1
training.steps = 4
training.validate_every = 2
training.save_every = 2
"""


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  folder = tmp_path_factory.mktemp('study')
  file = folder / 'tiny.toml'
  # Longer than the training: its time is known all the same.
  tiny = TINY | {'training.log_every': 100}
  fields = ''.join(f'{k} = {json.dumps(v)}\n' for k, v in tiny.items())
  file.write_text(_HEAD + fields)
  records = fusion_jax.study(file, folder / 'work', jobs=2)
  return plan.read(file), Folder(folder / 'work'), records


def test_records_have_every_run_and_its_state(made):
  _, _, records = made
  states = {(x['contestant'], x['seed']): x['state'] for x in records}
  assert states == {
    (name, seed): 'failed' if name == 'broken' else 'finished'
    for name in ('plain', 'fused', 'broken')
    for seed in (0, 1)
  }
  reasons = {x['reason'] for x in records if x['state'] == 'failed'}
  assert all('vocabulary' in reason for reason in reasons)


def test_scores_are_those_of_the_saved_translations(made):
  study, folder, records = made
  data = study.runs[0].config.data
  _, references = zip(*open_corpus(_TEST, data).read(), strict=True)
  scored = 0
  for run in study.runs:
    if run.choice or not folder.is_finished(run):
      continue
    lines = folder.translations(run, _TEST)
    expected = sacrebleu.corpus_chrf(lines, [references]).score
    (record,) = (
      x
      for x in records
      if (x['contestant'], x['seed']) == (run.contestant, run.seed)
    )
    assert record['embedded_test/chrf'] == pytest.approx(expected)
    scored += 1
  assert scored == 4


def test_runs_that_no_other_starts_from_lose_their_checkpoints(made):
  study, folder, _ = made
  kept = {
    run.contestant
    for run in study.runs
    if (folder.of(run) / 'run/checkpoints').is_dir() and folder.is_finished(run)
  }
  assert kept == {'plain'}


def test_the_page_has_all_contestants_and_reasons(made):
  _, folder, _ = made
  page = (folder.workdir / 'study.html').read_text('utf-8')
  for words in (
    'broken has as many parameters as fused',
    'vocabulary',
    '<svg',
    'by frequency of the target word',
  ):
    assert words in page
  with (folder.workdir / 'study.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert [row['contestant'] for row in rows] == ['plain', 'fused', 'broken']
  assert [row['seeds'] for row in rows] == ['2', '2', '0']
