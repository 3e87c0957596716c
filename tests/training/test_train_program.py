"""train.py from outside: what a user starts, stops, breaks and starts again.

The runs are of the embedded corpus cut to 600 pairs. They share one prepared
corpus and one compilation cache, so that each takes a few seconds.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import (
  ROOT,
  STEPS,
  assert_same_parameters,
  logged,
  one_line,
  saved_steps,
  wait_for_step,
)

from fusion_jax.runs.directory import locked


@pytest.fixture(scope='module')
def unbroken(program, tmp_path_factory):
  """A run that nobody disturbed."""
  workdir = tmp_path_factory.mktemp('unbroken') / 'run'
  code, err = program.run(workdir)
  assert code == 0, err
  return workdir, err


@pytest.mark.extended
def test_a_run_leaves_what_decoding_needs(unbroken):
  workdir, err = unbroken
  assert {p.name for p in workdir.iterdir()} >= {
    'config.json',
    'source.model',
    'target.model',
    'checkpoints',
    'metrics.jsonl',
    'translations',
    'version',
  }
  # The last three, and the best of the two validations among them or not.
  assert saved_steps(workdir)[-3:] == [200, 250, 300]
  assert len(logged(workdir, 'train')) == STEPS
  valid = logged(workdir, 'valid')
  assert [row['step'] for row in valid] == [150, 300]
  assert valid[-1]['loss'] < logged(workdir, 'train')[0]['loss']
  assert {'perplexity', 'accuracy', 'bleu', 'chrf'} <= set(valid[0])
  assert (
    len((workdir / 'translations' / '300.txt').read_text().splitlines()) == 8
  )
  assert err.index('1 training shapes') < err.index('step 1 of 300')


@pytest.mark.extended
def test_a_finished_run_has_nothing_to_do(program, unbroken):
  workdir, _ = unbroken
  before = saved_steps(workdir)
  code, err = program.run(workdir)
  assert code == 0, err
  assert 'resuming from step 300' in err
  assert saved_steps(workdir) == before


@pytest.mark.extended
def test_kill_9_and_the_same_command_end_in_the_same_parameters(
  program, unbroken, tmp_path
):
  workdir = tmp_path / 'run'
  process = program.start(workdir)
  # Any step will do; this one lies between two checkpoints.
  wait_for_step(workdir, 129, process)
  process.kill()
  program.finish(process)
  assert saved_steps(workdir)[-1] < STEPS
  code, err = program.run(workdir)
  assert code == 0, err
  assert 'resuming from step' in err
  assert_same_parameters(workdir, unbroken[0])
  # No step is there twice, and none is missing.
  steps = [row['step'] for row in logged(workdir, 'train')]
  assert steps == list(range(1, STEPS + 1))


@pytest.mark.extended
@pytest.mark.parametrize(
  ('number', 'expected'), [(signal.SIGINT, 130), (signal.SIGTERM, 75)]
)
def test_a_polite_stop_saves_and_resumes(
  program, unbroken, tmp_path, number, expected
):
  workdir = tmp_path / 'run'
  process = program.start(workdir)
  wait_for_step(workdir, 70, process)
  process.send_signal(number)
  _, err, code = program.finish(process)
  assert code == expected, err
  stopped = saved_steps(workdir)[-1]
  assert f'stopped after step {stopped}' in err
  assert stopped % 50 != 0 or stopped < STEPS
  code, err = program.run(workdir)
  assert code == 0, err
  assert f'resuming from step {stopped}' in err
  assert_same_parameters(workdir, unbroken[0])


@pytest.mark.extended
def test_a_damaged_checkpoint_is_left_out_with_a_warning(
  program, unbroken, tmp_path
):
  workdir = tmp_path / 'run'
  shutil.copytree(unbroken[0], workdir)
  files = (workdir / 'checkpoints' / '300' / 'parameters').rglob('*')
  for path in files:
    if path.is_file():
      path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  code, err = program.run(workdir)
  assert code == 0, err
  assert 'is damaged and is left out' in err
  assert 'resuming from step 250' in err
  assert (workdir / 'damaged' / '300').is_dir()
  assert_same_parameters(workdir, unbroken[0])


@pytest.mark.extended
def test_a_full_disk_is_one_line_and_loses_nothing(program, unbroken, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(unbroken[0], workdir)
  (workdir / 'metrics.jsonl').unlink()
  # The parameters alone have 40 KiB.
  process = program.start(
    workdir, limit=24, training__steps=400, training__log_every=50
  )
  _, err, code = program.finish(process)
  assert code == 2, err
  # It is the one of step 350.
  assert 'a checkpoint could not be written' in one_line(err)
  code, err = program.run(workdir, training__steps=310)
  assert code == 0, err
  assert 'resuming from step 300' in err


@pytest.mark.extended
@pytest.mark.usefixtures('unbroken')
def test_a_disk_that_is_full_at_the_start(program, tmp_path):
  # The corpus is prepared; its copy for the run has more than 8 KiB.
  _, err, code = program.finish(program.start(tmp_path / 'run', limit=8))
  assert code == 2, err
  assert 'run/corpus/en-de.source: cannot be written' in one_line(err)
  code, err = program.run(tmp_path / 'run', training__steps=2)
  assert code == 0, err


@pytest.mark.extended
def test_patience_ends_a_run_that_does_not_improve(program, tmp_path):
  workdir = tmp_path / 'run'
  code, err = program.run(
    workdir,
    optimizer__peak=1e-12,
    training__validate_every=20,
    training__patience=2,
    training__metric='bleu',
  )
  assert code == 0, err
  # The first validation is the best there is; two more are not better.
  assert 'no better bleu in 2 validations' in err
  assert saved_steps(workdir)[-1] == 60


@pytest.mark.extended
def test_two_trainings_in_one_directory(program, unbroken):
  workdir = unbroken[0]
  before = saved_steps(workdir)
  with locked(workdir):
    code, err = program.run(workdir, training__steps=STEPS + 50)
  assert code == 2
  assert f'process {os.getpid()} of ' in one_line(err)
  assert saved_steps(workdir) == before


@pytest.mark.extended
def test_another_config_is_refused_by_field(program, unbroken):
  code, err = program.run(unbroken[0], model__width=32, training__seed=7)
  assert code == 2
  message = one_line(err)
  assert 'model.width (16 there, 32 given)' in message
  assert 'training.seed (0 there, 7 given)' in message


@pytest.mark.extended
def test_another_tokenizer_is_refused(program, unbroken, tmp_path):
  workdir = tmp_path / 'run'
  shutil.copytree(unbroken[0], workdir)
  model = (workdir / 'source.model').read_bytes()
  (workdir / 'source.model').write_bytes(model + b'\x00')
  code, err = program.run(workdir)
  assert code == 2
  assert 'source.model' in one_line(err)


def _decode(workdir: Path, text: bytes, *flags: str):
  return subprocess.run(
    [sys.executable, 'decode.py', f'--workdir={workdir}', *flags],
    cwd=ROOT,
    input=text,
    capture_output=True,
    timeout=300,
    check=False,
  )


@pytest.mark.extended
def test_decoding_needs_only_the_run_directory(program, unbroken, tmp_path):
  workdir = tmp_path / 'moved'
  shutil.copytree(unbroken[0], workdir)
  broken = b'June \xff 5\n'
  text = b'The meeting is on Monday.\n\n' + broken + b'No newline'
  done = _decode(workdir, text, '--average=2', '--beam_size=2')
  assert done.returncode == 0, done.stderr
  lines = done.stdout.decode().split('\n')
  assert len(lines) == 5
  assert lines[1] == lines[4] == ''
  assert b'line 3' in done.stderr
