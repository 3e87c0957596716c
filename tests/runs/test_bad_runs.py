"""Run directories that cannot be loaded: newer, edited or cut off."""

import json
import os
import shutil

import jax
import jax.numpy as jnp
import pytest
from saved_runs import SavedRun, edit_meta, iterator, meta_path, without_digests

from fusion_jax.config import TokenizerConfig
from fusion_jax.config.serialization import FORMAT
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.errors import InputError
from fusion_jax.runs import run_directory
from fusion_jax.runs.checkpoint import Checkpoints
from fusion_jax.runs.checkpoint_reading import reading
from fusion_jax.runs.loading import load_run
from fusion_jax.seals import DamagedError
from fusion_jax.training.logs import MetricsLog


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  run = SavedRun(tmp_path_factory.mktemp('runs') / 'base')
  run.save({10: 1.0})
  return run


@pytest.fixture
def workdir(saved, tmp_path):
  folder = tmp_path / 'run'
  shutil.copytree(saved.workdir, folder)
  return folder


def _edit(path, **changes):
  """Replaces values of a JSON file; None takes one out."""
  values = json.loads(path.read_text()) | changes
  kept = {name: value for name, value in values.items() if value is not None}
  path.write_text(json.dumps(kept))


def _refusal(workdir, *arguments):
  with pytest.raises(InputError) as error:
    load_run(workdir, *arguments)
  assert '\n' not in str(error.value)
  return str(error.value)


def test_files_without_a_format_are_of_the_first(workdir, saved):
  for path in (workdir / 'config.json', meta_path(workdir, 10)):
    assert json.loads(path.read_text())['format'] == FORMAT
  _edit(workdir / 'config.json', format=None)
  edit_meta(workdir, 10, 'format')
  assert load_run(workdir).config == saved.config


@pytest.mark.parametrize('step', ['best', 'last'])
@pytest.mark.parametrize('part', ['config', 'checkpoint'])
def test_a_newer_format_is_refused(workdir, part, step):
  if part == 'checkpoint':
    where = workdir / 'checkpoints' / '10'
    edit_meta(workdir, 10, format=FORMAT + 1)
  else:
    where = workdir
    _edit(workdir / 'config.json', format=FORMAT + 1)
  assert _refusal(workdir, step) == (
    f'{where} was written by a newer fusion_jax (format {FORMAT + 1}; this one '
    f'reads up to {FORMAT}); update it'
  )


def test_a_cut_tokenizer_is_named(workdir):
  # Cut after a piece, a SentencePiece model is one of fewer pieces.
  other = Tokenizer(train(['a dog'] * 3, TokenizerConfig('bpe', 12)))
  (workdir / 'source.model').write_bytes(other.model)
  assert 'another tokenizer than source.model' in _refusal(workdir)


@pytest.mark.parametrize('make', [os.mkdir, os.mkfifo])
@pytest.mark.parametrize('name', ['config.json', 'source.model'])
def test_what_is_no_file_is_named(workdir, name, make):
  (workdir / name).unlink()
  make(workdir / name)
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


def test_a_training_reads_no_device(workdir, saved):
  for name in ('metrics.jsonl', 'source.model'):
    (workdir / name).unlink(missing_ok=True)
    (workdir / name).symlink_to('/dev/null')
  said = 'is a folder, a pipe or a device'
  with pytest.raises(InputError, match=f'metrics.jsonl: {said}'):
    MetricsLog(workdir, 10)
  tokenizer = Tokenizer.from_file(workdir / 'target.model')
  with pytest.raises(InputError, match=f'source.model: {said}'):
    run_directory.create(workdir, saved.config, tokenizer, tokenizer)


def test_damage_is_said_in_the_words_of_who_found_it():
  def restore():
    raise ValueError('details: <bound method f.spec>') from found

  found = OSError('NOT_FOUND: "d/7" does not exist [tensorstore_spec={}]')
  with pytest.raises(DamagedError) as error, reading():
    restore()
  assert str(error.value) == 'NOT_FOUND: "d/7" does not exist'


def test_a_number_that_is_no_checkpoint_is_told_once(workdir, caplog):
  (workdir / 'checkpoints' / '99').mkdir()
  assert load_run(workdir, 'last').step == 10
  assert len([m for m in caplog.messages if 'checkpoints/99' in m]) == 1


@pytest.mark.parametrize(
  'name', ['config.json', 'target.model', 'checkpoints/10/x', 'corpus', 'lock']
)
def test_no_output_replaces_what_is_of_a_run(workdir, name):
  (workdir / 'link').symlink_to(workdir / name)
  for path in (workdir / name, workdir / 'link'):
    with pytest.raises(InputError, match=f'=.*belongs to the run {workdir}'):
      run_directory.check_output(path)
  for path in (
    workdir / 'report.html',
    workdir / 'analysis',
    workdir / 'x.txt',
  ):
    run_directory.check_output(path)
  run_directory.check_output(workdir.parent / name)


def test_training_does_not_resume_a_newer_run(workdir, saved):
  edit_meta(workdir, 10, format=FORMAT + 1)
  run = SavedRun(workdir)
  checkpoints = run.checkpoints()
  with pytest.raises(InputError, match=r'10 was written by a newer'):
    checkpoints.restore(run.state(0), iterator())
  checkpoints.close()
  _edit(workdir / 'config.json', format=FORMAT + 1)
  with pytest.raises(InputError, match=r'run was written by a newer'):
    run_directory.check(workdir, saved.config)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (
      '{"format": "new"}',
      "format must be a whole number from 1, got 'new'",
    ),
    ('[1]', 'run/config.json: must be an object, got [1]'),
    ('{', 'run/config.json: not JSON: '),
    (
      '{"model": {"wings": 2}}',
      'run/config.json: config.model.wings: no such field; remove it, or '
      'update fusion_jax if a newer one wrote it',
    ),
  ],
)
def test_a_broken_config_is_named(workdir, text, message):
  (workdir / 'config.json').write_text(text)
  assert message in _refusal(workdir)


_ANOTHER_MODEL = 'checkpoints/10: holds another model than that of config.json'


@pytest.mark.parametrize(
  ('model', 'difference'),
  [
    ({'filter': 64}, 'decoder/layer_0/feed_forward/'),
    ({'encoder_layers': 2, 'encoder': {'fusion': 'linear'}}, 'it has no enc'),
    ({'decoder_layers': 2}, 'it has no decoder/layer_1/'),
  ],
)
@pytest.mark.parametrize('digests', [True, False])
def test_a_checkpoint_of_another_model_is_told(
  workdir, model, difference, digests
):
  if digests:
    edit_meta(workdir, 10, 'model')
  else:
    without_digests(workdir)
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


def test_training_does_not_resume_with_the_fields_of_another(workdir, saved):
  run = SavedRun(workdir)
  run.identity['model'] = {**saved.identity['model'], 'model.heads': 4}
  checkpoints = run.checkpoints()
  with pytest.raises(InputError, match=r'heads is 2 there and 4 here; put'):
    checkpoints.restore(run.state(0), iterator())
  checkpoints.close()
  assert run.steps() == [10]


def test_fields_of_training_alone_may_be_others(workdir):
  free = {
    'dropout': 0.4,
    'attention_dropout': 0.4,
    'activation_dropout': 0.4,
    'embedding_dropout': 0.4,
    'dropout_generator': 'threefry',
    'flatten_positions': False,
    'initialization': 'mlrf',
    'remat': True,
    'remat_policy': 'dots',
  }
  _edit_model(workdir, **free)
  assert load_run(workdir).config.model.remat
  _edit_model(workdir, attention_dropout=0, attention_implementation='xla')
  load_run(workdir)


def test_training_does_not_resume_with_another_model(workdir):
  run = SavedRun(workdir)
  run.shapes.pop('target_embedding', None)
  run.shapes['wings'] = jax.ShapeDtypeStruct([2], jnp.float32)
  checkpoints = run.checkpoints()
  with pytest.raises(InputError) as error:
    checkpoints.restore(run.state(0), iterator())
  assert f'{_ANOTHER_MODEL}: it has no wings' in str(error.value)
  checkpoints.close()
  # Nothing was set aside as damaged.
  assert run.steps() == [10]


@pytest.mark.parametrize(
  ('removed', 'message'),
  [
    ('config.json', 'run: not a run directory: it has no config.json'),
    ('target.model', 'target.model: missing; training writes it into the run'),
    ('checkpoints', 'checkpoints: no checkpoint yet; train first'),
    ('checkpoints/10', 'checkpoints: no checkpoint yet; train first'),
  ],
)
def test_what_is_missing_is_named(workdir, removed, message):
  path = workdir / removed
  path.unlink() if path.is_file() else shutil.rmtree(path)
  assert message in _refusal(workdir)


def test_a_broken_tokenizer_is_named(workdir):
  (workdir / 'source.model').write_bytes(b'no model')
  assert 'source.model' in _refusal(workdir)


def test_other_files_among_the_checkpoints_do_no_harm(workdir):
  (workdir / 'checkpoints' / 'notes').mkdir()
  (workdir / 'checkpoints' / 'README').write_text('mine')
  (workdir / 'checkpoints' / '20.orbax-checkpoint-tmp').mkdir()
  assert load_run(workdir).step == 10


def test_a_checkpoint_folder_that_orbax_cannot_open(workdir, saved):
  metadata = workdir / 'checkpoints' / '10' / '_CHECKPOINT_METADATA'
  metadata.write_text('[' * 100_000)
  with pytest.raises(InputError, match='checkpoints: cannot be used: '):
    Checkpoints(workdir, saved.config.training, saved.identity)
