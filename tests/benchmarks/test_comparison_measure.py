"""What stays of a finished run."""

import pytest
from small_comparison import DENSE, PLAIN, planned, recipe

from benchmarks.comparison.contestants import Contestants
from benchmarks.comparison.experiment import Folders
from benchmarks.comparison.measure import Runner

NAMES = 'plain/pre/none-0', 'continued/pre/dense-0', 'scratch/pre/dense-0'


@pytest.mark.parametrize('kept', [{'plain'}, {'plain', 'continued'}])
def test_checkpoints_stay_of_the_phases_that_are_kept(tmp_path, kept):
  own = recipe(tmp_path)
  folders = Folders.of(tmp_path, tmp_path, own)
  runner = Runner(
    own,
    Contestants(own.phases['plain']),
    folders,
    tests={},
    hardware={},
    keep_open=(),
    deadline=None,
    kept=kept,
  )
  runs = planned(own, (PLAIN, DENSE))
  for name in NAMES:
    checkpoints = folders.run(runs[name]) / 'checkpoints'
    checkpoints.mkdir(parents=True)
    runner.clean(runs[name])
    assert checkpoints.exists() == (runs[name].phase in kept)
