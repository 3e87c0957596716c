"""Two processes, of two devices each, that train as one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from programs import (
  ROOT,
  logged,
  one_line,
  process_flags,
  saved_steps,
  wait_for_step,
)

from fusion_jax.runs.loading import CheckpointSelection, load_run

_STEPS = 40
_RUN = {
  'training__steps': _STEPS,
  'training__save_every': 20,
  'training__validate_every': 40,
  'parallel__lost_after': 9,
  # Adam must not blow up what is zero but for rounding.
  'optimizer__epsilon': 1e-3,
}


@pytest.fixture(scope='module')
def alone(program, tmp_path_factory):
  """The run of one process with one device."""
  workdir = tmp_path_factory.mktemp('alone') / 'run'
  code, err = program.run(workdir, **_RUN)
  assert code == 0, err
  return workdir


def _finished(program, processes) -> list[tuple[str, int]]:
  return [program.finish(process)[1:] for process in processes]


def _assert_the_same_run(workdir: Path, alone: Path):
  ours, theirs = (logged(path, 'train') for path in (workdir, alone))
  assert [row['step'] for row in ours] == [row['step'] for row in theirs]
  # The loss of a step is that of its batch: the batches were the same.
  # A ReLU whose input is 0 but for rounding makes the gradient jump.
  for name, rtol in (('loss', 1e-5), ('gradient_norm', 2e-3)):
    np.testing.assert_allclose(
      [row[name] for row in ours], [row[name] for row in theirs], rtol=rtol
    )
  ours, theirs = (logged(path, 'valid')[-1] for path in (workdir, alone))
  for name in ('loss', 'perplexity', 'accuracy', 'bleu', 'chrf'):
    assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-3), name
  ours, theirs = (
    load_run(path, CheckpointSelection('last')).parameters['source_embedding']
    for path in (workdir, alone)
  )
  np.testing.assert_allclose(ours, theirs, atol=1e-4)


@pytest.mark.extended
def test_a_stop_of_one_stops_both_and_one_alone_resumes(
  program, alone, tmp_path
):
  workdir = tmp_path / 'run'
  both = program.start_together(workdir, **_RUN)
  wait_for_step(workdir, 23, *both)
  both[1].send_signal(signal.SIGTERM)
  (first, code), (second, other_code) = _finished(program, both)
  assert (code, other_code) == (75, 75), first + second
  (*_, stopped) = saved_steps(workdir)
  assert 23 <= stopped < _STEPS
  assert f'stopped after step {stopped}' in first
  # Only the first says what goes well.
  assert 'step' not in second
  code, err = program.run(workdir, **_RUN)
  assert code == 0, err
  assert f'resuming from step {stopped}' in err
  _assert_the_same_run(workdir, alone)


@pytest.mark.extended
def test_one_begins_and_two_with_sharded_parameters_resume(
  program, alone, tmp_path
):
  workdir = tmp_path / 'run'
  code, err = program.run(workdir, **(_RUN | {'training__steps': 20}))
  assert code == 0, err
  both = program.start_together(workdir, **_RUN, parallel__fsdp=2)
  (first, code), (second, other_code) = _finished(program, both)
  assert (code, other_code) == (0, 0), first + second
  assert 'resuming from step 20' in first
  assert 'data 2 x fsdp 2 x tensor 1' in first
  _assert_the_same_run(workdir, alone)


@pytest.mark.extended
def test_what_one_cannot_read_is_read_by_none(
  program, alone, tmp_path, monkeypatch
):
  monkeypatch.setenv('PYTHONPATH', str(ROOT))
  workdir = tmp_path / 'run'
  often = _RUN | {'training__save_every': 10, 'training__keep_last': 3}
  code, err = program.run(workdir, **(often | {'training__steps': 40}))
  assert code == 0, err
  assert saved_steps(workdir) == [20, 30, 40]
  both = program.start_together(
    workdir,
    [{}, {'program': ROOT / 'tests' / 'training' / 'unreadable_for_one.py'}],
    **often,
    parallel__fsdp=2,
  )
  (first, code), (second, other_code) = _finished(program, both)
  assert (code, other_code) == (0, 0), first + second
  for err in (first, second):
    assert 'checkpoints/40 is damaged' in err
    assert 'process 1: Input/output error' in err
    assert 'process 1: meta does not agree with its digest' in err
  assert 'resuming from step 20' in first
  set_aside = workdir / 'damaged'
  assert sorted(path.name for path in set_aside.iterdir()) == ['30', '40']
  _assert_the_same_run(workdir, alone)


def _decode(alone: Path, out: Path, flags) -> subprocess.Popen:
  source = alone / 'translations' / '40.txt'
  files = f'--input={source}', f'--output={out}', '--output_format=json'
  return subprocess.Popen(
    [sys.executable, ROOT / 'decode.py', f'--workdir={alone}', *files, *flags],
    stderr=subprocess.PIPE,
    stdout=subprocess.DEVNULL,
    env=os.environ | {'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '2'},
  )


@pytest.mark.extended
def test_two_translate_as_one_does(alone, tmp_path):
  outs = tmp_path / 'one', tmp_path / 'both'
  batches = '--beam_size=1', '--batch_tokens=64'
  several = [[*batches, *flags] for flags in process_flags(2)]
  started = [_decode(alone, outs[0], batches)]
  started += [_decode(alone, outs[1], flags) for flags in several]
  for process in started:
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
  one, both = (out.read_text().splitlines() for out in outs)
  assert len(one) == 8
  for a, b in zip(map(json.loads, one), map(json.loads, both), strict=True):
    assert a['source'] == b['source']
    (a,), (b,) = a['translations'], b['translations']
    assert a['text'] == b['text']
    assert a['score'] == pytest.approx(b['score'], rel=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize(
  'number',
  [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)],
)
def test_a_process_that_is_lost_or_hangs_ends_the_other(
  program, tmp_path, number
):
  workdir = tmp_path / 'run'
  both = program.start_together(workdir, **(_RUN | {'training__steps': 9_999}))
  wait_for_step(workdir, 25, *both)
  both[1].send_signal(number)
  _, err, code = program.finish(both[0])
  both[1].kill()
  program.finish(both[1])
  assert code == 75, err
  message = one_line(err.replace(err.partition('error:')[0], ''))
  assert 'no heartbeat for 9 s from process 1 (last seen at step' in message
  assert 'start all processes again with the same command' in message
  assert 20 in saved_steps(workdir)


@pytest.mark.extended
def test_different_configs_are_refused_on_all(program, tmp_path):
  workdir = tmp_path / 'run'
  both = program.start_together(
    workdir, [{}, {'model__width': 32, 'training__seed': 1}], **_RUN
  )
  for err, code in _finished(program, both):
    assert code == 2, err
    message = one_line(err)
    assert 'config.model.width: 16 on process 0, 32 on process 1' in message
  assert not workdir.exists()


@pytest.mark.extended
def test_text_that_one_process_does_not_see_is_told_by_all(program, tmp_path):
  (tmp_path / 'here').mkdir()
  for language in ('en', 'de'):
    lines = ''.join(f'{language} {n}\n' for n in range(400))
    (tmp_path / 'here' / f'text.{language}').write_text(lines)
  text = "('text.{lang}',)"
  both = program.start_together(
    tmp_path / 'run',
    [{'folder': tmp_path / 'here'}, {'folder': ROOT}],
    **_RUN,
    data__train=text,
    data__tokenizer__vocabulary_size=50,
    data__valid='()',
    data__test='()',
  )
  for err, code in _finished(program, both):
    assert code == 2, err
    assert f'process 1: {ROOT / "text.en"}: no such file' in one_line(err)
  assert not (tmp_path / 'run').exists()
