"""The verdicts of the health of the schemes; its trainings are not run here."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.scheme_health import (
  CONTINUED,
  SCRATCH,
  SETTING,
  Job,
  job_config,
  jobs,
  setting,
  verdicts,
)
from benchmarks.schemes import BASELINE, ONLY_FROM_SCRATCH, schemes
from fusion_jax.config import ExperimentConfig, ModelConfig
from fusion_jax.errors import InputError


def _rounds(*runs):
  return {
    str(number): {'scheme': scheme, 'phase': phase, 'seed': seed, 'end': end}
    for number, (scheme, phase, seed, end) in enumerate(runs)
  }


@pytest.mark.parametrize(
  ('phase', 'behind', 'failed'),
  [
    (SCRATCH, 0.09, False),
    (SCRATCH, 0.11, True),
    (CONTINUED, 0.015, False),
    (CONTINUED, 0.025, True),
    (CONTINUED, -1.0, False),
    (SCRATCH, float('inf'), True),
    (SCRATCH, float('nan'), True),
  ],
)
def test_a_scheme_may_be_so_far_behind(phase, behind, failed):
  rounds = _rounds((BASELINE, phase, 0, 3.0), ('dense', phase, 0, 3.0 + behind))
  verdict = verdicts(rounds)['dense', phase]
  assert verdict.failed == failed
  assert verdict.seeds == 1


def test_three_seeds_may_be_half_as_far_behind():
  # Means of 0.07 over two and of 0.06 over three seeds.
  runs = [(BASELINE, SCRATCH, seed, 3.0) for seed in range(3)]
  runs += [('dense', SCRATCH, 0, 3.05), ('dense', SCRATCH, 1, 3.09)]
  assert not verdicts(_rounds(*runs))['dense', SCRATCH].failed
  runs += [('dense', SCRATCH, 2, 3.04)]
  verdict = verdicts(_rounds(*runs))['dense', SCRATCH]
  assert verdict.behind == pytest.approx(0.06)
  assert verdict.failed


def test_a_seed_without_the_plain_model_does_not_count():
  assert verdicts(_rounds(('dense', SCRATCH, 0, 9.0))) == {}


def test_exceptions_are_named():
  name, reason = next(iter(SETTING['exceptions'].items()))
  rounds = _rounds((BASELINE, SCRATCH, 0, 3.0), (name, SCRATCH, 0, 9.0))
  verdict = verdicts(rounds)[name, SCRATCH]
  assert not verdict.failed
  assert verdict.reason == reason
  assert SETTING['exceptions'].keys() <= schemes(4).keys()


def test_every_scheme_is_trained_from_both_starts():
  found = jobs(schemes(4), [0, 1])
  assert found[0] == Job(BASELINE, SCRATCH, 0)
  phases = {
    name: [job.phase for job in found if job.scheme == name and job.seed == 1]
    for name in schemes(4)
  }
  for name in ONLY_FROM_SCRATCH:
    assert phases.pop(name) == [SCRATCH]
  assert all(own == [SCRATCH, CONTINUED] for own in phases.values())


@pytest.mark.parametrize('name', schemes(4))
def test_every_scheme_has_a_config(name):
  model = ModelConfig(width=64, encoder_layers=4, decoder_layers=4, norm='pre')
  config = dataclasses.replace(ExperimentConfig(), model=model)
  row = schemes(4)[name]
  scratch = job_config(config, row, Job(name, SCRATCH, 3))
  assert scratch.training.seed == 3
  starts = {scratch.model.encoder.start, scratch.model.decoder.start}
  has_opening = name == 'decoder_hops_opening'
  assert starts == ({'fresh', 'baseline'} if has_opening else {'fresh'})
  if name not in (BASELINE, *ONLY_FROM_SCRATCH):
    own = job_config(config, row, Job(name, CONTINUED, 3))
    starts = {own.model.encoder.start, own.model.decoder.start}
    assert 'baseline' in starts
    assert own.training.steps < scratch.training.steps


def test_overrides_leave_the_plain_model_alone():
  config, rows = ExperimentConfig(), schemes(4)
  fields = ['model.encoder.options.capsules=8', 'optimizer.fusion_rate=0.5']
  own = job_config(
    config, rows['em_routing'], Job('em_routing', SCRATCH, 0), fields
  )
  assert own.model.encoder.options.capsules == 8
  assert own.optimizer.fusion_rate == 0.5
  plain = job_config(config, rows[BASELINE], Job(BASELINE, SCRATCH, 0), fields)
  assert (
    plain.optimizer
    == job_config(config, rows[BASELINE], Job(BASELINE, SCRATCH, 0)).optimizer
  )
  with pytest.raises(InputError, match='no such field'):
    job_config(config, rows['dense'], Job('dense', SCRATCH, 0), ['model.w=3'])


def test_a_missing_folder_is_told():
  with pytest.raises(InputError, match='--data: nowhere: no such folder'):
    setting(Path('nowhere'), None)
