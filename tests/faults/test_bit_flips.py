"""One flipped bit in any file: refused, left out with a warning, or harmless.

A few of them in every run of the tests; with `-m slow` 400 more.
"""

import collections
import functools
import gc
import logging
import random
import shutil

import chex
import jax.numpy as jnp
import pytest
from saved_runs import SavedRun, iterator

from fusion_jax.errors import InputError
from fusion_jax.runs.checkpoint import Checkpoints, Progress
from fusion_jax.runs.loading import CheckpointSelection, load_run

pytestmark = pytest.mark.extended

_OLDER, _NEWER = 10, 20


def _flip(path, generator):
  content = bytearray(path.read_bytes())
  position, bit = generator.randrange(len(content)), generator.randrange(8)
  content[position] ^= 1 << bit
  path.write_bytes(content)
  return f'bit {bit} of byte {position} of {path}'


def _outcome(read, same, older, caplog):
  """What became of a damaged copy.

  Args:
    read: gives all that is read of it.
    same: what it gives where nothing is damaged.
    older: what it may give after a warning.
    caplog: of pytest.

  Returns:
    'refused', 'left out' or 'the same'.
  """
  caplog.clear()
  with caplog.at_level(logging.WARNING):
    try:
      found = read()
    except InputError as error:
      return 'refused' if '\n' not in str(error) else 'refused in many lines'
  if 'is damaged and is left out' in caplog.text:
    chex.assert_trees_all_equal(found, older)
    return 'left out'
  chex.assert_trees_all_equal(found, same)
  return 'the same'


def _outcomes(folder, copy, parts, read, expected, caplog, seeds):
  """Counts what becomes of one bit of a file, both drawn by a seed.

  Even seeds draw any file, odd ones the large ones more often.
  """
  files = sorted(
    path.relative_to(folder)
    for part in parts
    for path in (folder / part).rglob('*')
    if path.is_file() and path.stat().st_size
  )
  sizes = [(folder / file).stat().st_size for file in files]
  counts = collections.Counter()
  for seed in seeds:
    generator = random.Random(seed)
    (file,) = generator.choices(files, sizes if seed % 2 else None)
    shutil.copytree(folder, copy)
    flipped = _flip(copy / file, generator)
    try:
      counts[_outcome(lambda: read(copy), *expected, caplog)] += 1
    except Exception as error:
      raise AssertionError(f'seed {seed}: {flipped}') from error
    shutil.rmtree(copy)
  # What Orbax has left open complains now, and not in another test.
  gc.collect()
  return counts


def _cases(common, others, many):
  """Cases with seeds: few by default and of the common ones, or many."""
  few = [pytest.param(each, range(3), id=f'{each}-few') for each in common]
  return few + [
    pytest.param(
      each, range(3, many), id=f'{each}-many', marks=pytest.mark.slow
    )
    for each in (*common, *others)
  ]


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A run with two checkpoints, the second one better."""
  run = SavedRun(tmp_path_factory.mktemp('runs') / 'base', ema=0.9)
  checkpoints, position = run.checkpoints(), iterator()
  for step in (_OLDER, _NEWER):
    next(position)
    progress = Progress(float(step), step, seconds=step / 7)
    checkpoints.save(_state(run, step), position, progress, float(step))
  checkpoints.close()
  return run


def _state(run, step):
  optimizer = {
    'moments': run.of_step(2_000 + step),
    'count': jnp.int32(step),
    'key': jnp.array([step, 7], jnp.uint32),
    'half': jnp.full([3], step / 7, jnp.bfloat16),
    'good': jnp.array([True, False]),
  }
  average = run.of_step(1_000 + step)
  return run.state(step)._replace(optimizer=optimizer, average=average)


def _loaded(workdir, *arguments):
  run = load_run(workdir, CheckpointSelection(*arguments))
  return run.steps, run.parameters


def _resumed(run, workdir):
  checkpoints = Checkpoints(workdir, run.config.training, run.identity)
  position = iterator()
  try:
    state, progress = checkpoints.restore(_state(run, 0), position)
    return state, vars(progress), position.get_state()
  finally:
    checkpoints.close()


# What is read, and of which items of the newer checkpoint.
_READINGS = {
  'best': (lambda run, folder: _loaded(folder), ['average', 'meta']),
  'named': (
    lambda run, folder: _loaded(folder, _NEWER, 1, 'last', 'last'),
    ['parameters', 'meta'],
  ),
  'best validated': (
    lambda run, folder: _loaded(folder, 'last', 1, 'best'),
    ['average', 'meta'],
  ),
  'resumed': (_resumed, ['']),
}


# Where one array cannot be read, Orbax does not wait for the others.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize(
  ('reading', 'seeds'),
  _cases(['best', 'resumed'], ['named', 'best validated'], 45),
)
def test_a_bit_of_a_checkpoint(saved, tmp_path, caplog, reading, seeds):
  read, items = _READINGS[reading]
  read = functools.partial(read, saved)
  alone = shutil.copytree(saved.workdir, tmp_path / 'alone')
  shutil.rmtree(alone / 'checkpoints' / str(_NEWER))
  older = None if reading == 'named' else read(alone)
  expected = read(saved.workdir), older
  parts = [f'checkpoints/{_NEWER}/{item}' for item in items]
  copy = tmp_path / 'run'
  counts = _outcomes(saved.workdir, copy, parts, read, expected, caplog, seeds)
  noticed = 'refused' if reading == 'named' else 'left out'
  assert set(counts) <= {noticed, 'the same'}
  if len(seeds) > 9:
    assert counts[noticed] > len(seeds) / 5
