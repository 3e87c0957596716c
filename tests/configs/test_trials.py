"""Every config trains two steps on data of the shape it is written for.

The text is that of the embedded corpus; files and TFDS datasets have the
names, compression and features of the real ones.
"""

import dataclasses
import functools
import gzip
import itertools
import lzma
from pathlib import Path

import jax
import pytest
import tensorflow_datasets as tfds
import tensorflow_datasets.translate  # Registers the WMT datasets.

from fusion_jax.config.flags import load_config, override
from fusion_jax.data.embedded import generate
from fusion_jax.parallel.mesh import make_mesh
from fusion_jax.runs.loading import load_run
from fusion_jax.training import loop
from fusion_jax.training.build import check_experiment

pytestmark = pytest.mark.extended
# Formats and options that another config has, too.
_SLOW = pytest.mark.slow

_CONFIGS = Path(__file__).parents[2] / 'configs'
_SMALL = {
  'data.tokenizer.vocabulary_size': '400',
  'data.embedded_pairs': '300',
  'data.batch.tokens': '512',
  'data.batch.shapes': '1',
  # For two devices and two parts.
  'data.batch.row_multiple': '4',
  'model.width': '16',
  'model.filter': '16',
  'model.heads': '2',
  'model.encoder_layers': '1',
  'model.decoder_layers': '1',
  'training.steps': '2',
  'training.translate_sentences': '2',
  'decoding.max_source_length': '32',
}
_OPEN = {'gz': gzip.open, 'xz': lzma.open}


@pytest.fixture(autouse=True)
def _two_devices(monkeypatch):
  def mesh(config):
    return make_mesh(config, jax.devices()[:2])

  def check(config, devices, *corpus):
    check_experiment(config, devices[:2], *corpus)

  monkeypatch.setattr(loop, 'make_mesh', mesh)
  monkeypatch.setattr(loop, 'check_experiment', check)


@functools.cache
def _pairs(split: str):
  return list(itertools.islice(generate('en', 'de', split, 300), 300))


def _write_files(folder: Path, languages: tuple[str, str], names: list[str]):
  for name, split in zip(names, ('train', 'valid', 'test'), strict=True):
    for side, language in enumerate(languages):
      path = folder / name.format(lang=language)
      path.parent.mkdir(exist_ok=True)
      lines = ''.join(f'{pair[side]}\n' for pair in _pairs(split))
      open_file = _OPEN.get(path.suffix[1:], open)
      with open_file(path, 'wt', encoding='utf-8') as file:
        file.write(lines)


def _write_tfds(folder: Path, name: str, languages: tuple[str, str]):
  registered = tfds.builder(name, data_dir=str(folder))
  dataset, _, version = name.partition('/')
  info = tfds.core.DatasetInfo(
    builder=tfds.core.DatasetIdentity(
      name=dataset,
      config_name=version,
      version=registered.version,
      data_dir=registered.data_dir,
      module_name=__name__,
    ),
    features=tfds.features.Translation(languages=languages),
  )
  Path(registered.data_dir).mkdir(parents=True)
  writer = tfds.core.SequentialWriter(info, 1_000, file_format='array_record')
  splits = {'train': 'train', 'validation': 'valid', 'test': 'test'}
  writer.initialize_splits(list(splits))
  writer.add_examples(
    {
      split: [dict(zip(languages, pair, strict=True)) for pair in _pairs(ours)]
      for split, ours in splits.items()
    }
  )
  writer.close_all()


def _files(extension: str, *splits: str):
  return [f'{split}.{{lang}}{extension}' for split in splits]


@pytest.mark.parametrize(
  ('name', 'languages', 'names'),
  [
    pytest.param('quickstart.py', ('en', 'de'), [], marks=_SLOW),
    (
      'multi30k.py:de-fr',
      ('de', 'fr'),
      _files('.gz', 'train', 'val', 'test_2016_flickr'),
    ),
    ('kyoto_jaen.py', ('ja', 'en'), _files('.xz', 'train', 'valid', 'test')),
    pytest.param(
      'iwslt14_deen.py',
      ('de', 'en'),
      _files('', 'train', 'valid', 'test'),
      marks=_SLOW,
    ),
    ('wmt14_ende.py:base', ('de', 'en'), 'wmt14_translate/de-en'),
    pytest.param(
      'wmt17_zhen.py:big', ('zh', 'en'), 'wmt17_translate/zh-en', marks=_SLOW
    ),
  ],
)
def test_two_steps(tmp_path, monkeypatch, name, languages, names):
  if isinstance(names, str):
    monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
    _write_tfds(tmp_path, names, languages)
  elif names:
    _write_files(tmp_path, languages, names)
  folders = {'data.root': tmp_path, 'data.prepared': tmp_path / 'prepared'}
  changes = _SMALL | {key: str(value) for key, value in folders.items()}
  config = override(load_config(str(_CONFIGS / name)), list(changes.items()))
  loop.run(config, tmp_path / 'run')
  run = load_run(tmp_path / 'run')
  assert run.step == 2
  data = run.config.data
  assert {data.source_language, data.target_language} == set(languages)


@pytest.mark.parametrize(
  ('name', 'languages', 'folder', 'names'),
  [
    pytest.param(
      'tatoeba_many.py',
      'de es',
      'tatoeba-{}-en',
      ('train', 'valid', 'test'),
      marks=_SLOW,
    ),
    pytest.param(
      'iwslt17_multi.py',
      'de it',
      '{}-en',
      ('train', 'dev2010', 'tst2017'),
      marks=_SLOW,
    ),
    ('opus100.py', 'af am', '{0}-en/opus.{0}-en-', ('train', 'dev', 'test')),
  ],
)
def test_two_steps_of_several_directions(
  tmp_path, name, languages, folder, names
):
  """Of the first two languages, both ways."""
  extension = '.gz' if name.startswith('tatoeba') else ''
  for language in languages.split():
    own = folder.format(language)
    start = own if own.endswith('-') else f'{own}/'
    files = _files(extension, *(start + split for split in names))
    _write_files(tmp_path, (language, 'en'), files)
  folders = {'data.root': tmp_path, 'data.prepared': tmp_path / 'prepared'}
  changes = _SMALL | {key: str(value) for key, value in folders.items()}
  config = override(load_config(str(_CONFIGS / name)), list(changes.items()))
  data = dataclasses.replace(config.data, directions=config.data.directions[:4])
  loop.run(dataclasses.replace(config, data=data), tmp_path / 'run')
  translations = tmp_path / 'run' / 'translations'
  first, second = languages.split()
  assert {path.name for path in translations.iterdir()} == {
    f'2.{each}.txt'
    for language in (first, second)
    for each in (f'{language}-en', f'en-{language}')
  }
