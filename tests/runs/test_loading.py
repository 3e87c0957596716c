"""Loading of runs: what is chosen, what is refused, means and averages."""

import functools
import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved_runs import SavedRun, edit_meta, iterator

from fusion_jax.config import TokenizerConfig
from fusion_jax.config.serialization import FORMAT
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.errors import InputError
from fusion_jax.files import DamagedError
from fusion_jax.parallel.mesh import by_rows, data_mesh
from fusion_jax.runs import loading
from fusion_jax.runs.checkpoint import Progress
from fusion_jax.runs.integrity import reading
from fusion_jax.runs.loading import CheckpointSelection, load_run
from fusion_jax.testing import assert_close
from fusion_jax.tools import average_checkpoints


def _edit(path, **changes):
  """Replaces values of a JSON file; None takes one out."""
  values = json.loads(path.read_text()) | changes
  kept = {name: value for name, value in values.items() if value is not None}
  path.write_text(json.dumps(kept))


def _refusal(workdir, *arguments):
  with pytest.raises(InputError) as error:
    load_run(workdir, CheckpointSelection(*arguments))
  assert '\n' not in str(error.value)
  return str(error.value)


@pytest.mark.parametrize('written', [FORMAT + 1, None])
@pytest.mark.parametrize('part', ['config', 'checkpoint'])
def test_another_format_is_refused(workdir, part, written):
  if part == 'checkpoint':
    where = workdir / 'checkpoints' / '10'
    edit_meta(workdir, 10, format=written)
  else:
    where = workdir
    _edit(workdir / 'config.json', format=written)
  assert _refusal(workdir) == (
    f'{where} has the format {written!r}, and this fusion_jax reads format '
    f'{FORMAT} alone; use the version that wrote it'
  )


def test_a_cut_tokenizer_is_named(workdir):
  # Cut after a piece, a SentencePiece model is one of fewer pieces.
  other = Tokenizer(train(['a dog'] * 3, TokenizerConfig('bpe', 12)))
  for side in ('source', 'target'):
    (workdir / f'{side}.model').write_bytes(other.model)
  assert 'another tokenizer than source.model' in _refusal(workdir)


@pytest.mark.parametrize('name', ['config.json', 'source.model'])
def test_what_is_no_file_is_named(workdir, name):
  (workdir / name).unlink()
  os.mkfifo(workdir / name)
  assert _refusal(workdir) == (
    f'{workdir / name}: is a folder, a pipe or a device, not a file'
  )


@pytest.mark.parametrize('name', ['meta/metadata', 'training/_METADATA'])
def test_a_device_in_a_checkpoint_is_not_read(workdir, caplog, name):
  path = workdir / 'checkpoints' / '10' / name
  path.unlink()
  path.symlink_to('/dev/null')
  assert '0 readable checkpoints' in _refusal(workdir)
  assert f'{name} is no file' in caplog.text


def test_damage_is_said_in_the_words_of_who_found_it():
  def restore():
    raise ValueError('details: <bound method f.spec>') from found

  found = OSError('NOT_FOUND: "d/7" does not exist [tensorstore_spec={}]')
  with pytest.raises(DamagedError) as error, reading():
    restore()
  assert str(error.value) == 'NOT_FOUND: "d/7" does not exist'


def test_a_number_that_is_no_checkpoint_is_told_once(workdir, caplog):
  (workdir / 'checkpoints' / '99').mkdir()
  assert load_run(workdir, CheckpointSelection('last')).step == 10
  assert len([m for m in caplog.messages if 'checkpoints/99' in m]) == 1


_ANOTHER_MODEL = 'checkpoints/10: holds another model than that of config.json'


@pytest.mark.parametrize(
  ('model', 'difference'),
  [
    ({'filter': 64}, 'decoder/layer_0/feed_forward/'),
    ({'encoder_layers': 2, 'encoder': {'fusion': 'linear'}}, 'encoder/'),
    ({'decoder_layers': 2}, 'decoder/layer_1/'),
  ],
)
def test_a_checkpoint_of_another_model_is_told(workdir, model, difference):
  edit_meta(workdir, 10, model={})
  small = {'width': 16, 'filter': 32, 'heads': 2}
  layers = {'encoder_layers': 1, 'decoder_layers': 1}
  _edit(workdir / 'config.json', model=small | layers | model)
  message = _refusal(workdir)
  assert f'{_ANOTHER_MODEL}: {difference}' in message
  assert 'put back the config.json that it was trained with' in message


def _edit_model(workdir, **changes):
  path = workdir / 'config.json'
  _edit(path, model=json.loads(path.read_text())['model'] | changes)


def test_the_fields_of_another_model_are_named(workdir):
  _edit_model(workdir, heads=4, norm_epsilon=0.5, dropout=0.4)
  assert (
    f'{_ANOTHER_MODEL}: model.heads is 2 there and 4 here, model.norm_epsilon '
    'is 1e-06 there and 0.5 here; put back'
  ) in _refusal(workdir)


def test_fields_of_training_alone_may_be_others(workdir):
  free = {
    'dropout': 0.4,
    'attention_dropout': 0.4,
    'activation_dropout': 0.4,
    'embedding_dropout': 0.4,
    'dropout_generator': 'threefry',
    'flatten_positions': False,
    'initialization': 'fan_in',
    'remat': True,
    'remat_policy': 'dots',
  }
  _edit_model(workdir, **free)
  assert load_run(workdir).config.model.remat
  _edit_model(workdir, attention_dropout=0, attention_implementation='xla')
  load_run(workdir)


@pytest.mark.parametrize(
  ('removed', 'message'),
  [
    ('config.json', 'run: not a run directory: it has no config.json'),
    ('target.model', 'target.model: cannot be read: No such file'),
    ('checkpoints', 'checkpoints: no checkpoint yet; train first'),
    ('checkpoints/10', 'checkpoints: no checkpoint yet; train first'),
  ],
)
def test_what_is_missing_is_named(workdir, removed, message):
  path = workdir / removed
  path.unlink() if path.is_file() else shutil.rmtree(path)
  assert message in _refusal(workdir)


def test_other_files_among_the_checkpoints_do_no_harm(workdir):
  (workdir / 'checkpoints' / 'notes').mkdir()
  (workdir / 'checkpoints' / 'README').write_text('mine')
  (workdir / 'checkpoints' / '20.orbax-checkpoint-tmp').mkdir()
  assert load_run(workdir).step == 10


def _average_of(run, step):
  """Other numbers than the parameters of that step."""
  return run.of_step(1_000 + step)


def _state(run, step):
  return run.state(step)._replace(average=_average_of(run, step))


@pytest.fixture(scope='module')
def averaged(tmp_path_factory):
  """A run with a moving average at steps 10 and 20."""
  run = SavedRun(tmp_path_factory.mktemp('runs') / 'ema', ema=0.9)
  checkpoints = run.checkpoints()
  for step in (10, 20):
    checkpoints.save(_state(run, step), iterator(), Progress(skipped=3), 1.0)
  checkpoints.close()
  return run


def _mean(*trees):
  return jax.tree.map(
    lambda *xs: np.mean(xs, axis=0, dtype=np.float64).astype(np.float32), *trees
  )


@pytest.mark.parametrize(
  ('chosen', 'of'), [(None, 'ema'), ('ema', 'ema'), ('last', 'last')]
)
@pytest.mark.parametrize('count', [1, 2])
def test_the_average_is_read_unless_the_last_is_wanted(
  averaged, chosen, of, count
):
  steps = (20,) if count == 1 else (10, 20)
  tree = averaged.of_step if of == 'last' else _average_of
  trees = [
    tree(step) if of == 'last' else tree(averaged, step) for step in steps
  ]
  run = load_run(
    averaged.workdir, CheckpointSelection('last', count, 'last', chosen)
  )
  assert_close(run.parameters, _mean(*trees), units=16)
  assert run.steps == steps


def test_a_damaged_average_gives_way_to_the_checkpoint_before(
  averaged, tmp_path, caplog
):
  workdir = tmp_path / 'run'
  shutil.copytree(averaged.workdir, workdir)
  shutil.rmtree(workdir / 'checkpoints' / '20' / 'average')
  run = load_run(workdir, CheckpointSelection('last'))
  assert run.step == 10
  assert 'checkpoints/20 is damaged' in caplog.text
  assert (
    load_run(workdir, CheckpointSelection('last', parameters='last')).step == 20
  )


def test_an_average_that_is_not_there_is_one_line(workdir):
  path = workdir / 'checkpoints' / '10'
  assert _refusal(workdir, 'best', 1, 'last', 'ema') == (
    f'--parameters=ema: {path} has no moving average of its parameters; '
    'training.ema makes one. Leave the flag out'
  )


@pytest.mark.extended
def test_a_saved_mean_is_of_what_was_chosen(averaged, tmp_path, capsys):
  last = {None: _average_of(averaged, 10), 'last': averaged.of_step(10)}
  for chosen, first in last.items():
    output = tmp_path / str(chosen)
    flags = ['--average=2', f'--output={output}']
    flags += [f'--parameters={chosen}'] if chosen else []
    assert (
      average_checkpoints.main([f'--workdir={averaged.workdir}', *flags]) == 0
    )
    second = averaged.of_step(20) if chosen else _average_of(averaged, 20)
    saved = load_run(output).parameters
    assert_close(saved, _mean(first, second), units=16)
    with pytest.raises(InputError, match='has no moving average'):
      load_run(output, CheckpointSelection(parameters='ema'))
  assert capsys.readouterr().err == ''


def _mean_of(leaves):
  total = functools.reduce(
    loading._sum, [{'leaf': jnp.asarray(leaf)} for leaf in leaves]
  )
  return loading._quotient(total, jnp.float32(len(leaves)))['leaf']


def test_the_error_of_many_is_that_of_float32():
  leaves = np.random.default_rng(0).normal(size=(30, 500)).astype(np.float32)
  expected = leaves.astype(np.float64).mean(axis=0)
  # 30 additions of values below 5, each rounded to 2^-24 of a sum below 32.
  assert np.abs(_mean_of(list(leaves)) - expected).max() < 32 * 2**-24


def test_parameters_that_are_cut_over_devices_stay_so():
  sharding = by_rows(data_mesh())
  rows = np.arange(8.0, dtype=np.float32).reshape(8, 1)
  mean = _mean_of([jax.device_put(rows * k, sharding) for k in (1.0, 3.0)])
  np.testing.assert_array_equal(mean, 2 * rows)
  assert mean.sharding == sharding
  assert len(mean.sharding.device_set) == 8
