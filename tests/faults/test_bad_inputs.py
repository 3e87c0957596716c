"""Bad inputs end in one line: every option, every field, every file there is.

The cases are made from the parsers, the config and the files that a training
leaves, so that what is new is covered without a new test. Run with -m slow.
"""

import collections
import json
import shutil
import threading

import bad_inputs
import entry_points
import pytest

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.serialization import flatten

pytestmark = [
  pytest.mark.slow,
  # Orbax leaves open what reads a damaged checkpoint.
  pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning'),
]

_PROGRAMS = entry_points.programs()
_TINY = {
  'data.embedded_pairs': 300,
  'data.tokenizer.vocabulary_size': 250,
  'data.batch.tokens': 256,
  'data.batch.shapes': 1,
  'model.width': 8,
  'model.filter': 8,
  'model.heads': 1,
  'model.encoder_layers': 1,
  'model.decoder_layers': 1,
  'training.steps': 4,
  'training.save_every': 2,
  'training.validate_every': 2,
  'training.translate_sentences': 2,
  'training.keep_last': 2,
}
_CONFIG = (
  f'--config={entry_points.ROOT}/configs/quickstart.py',
  '--config.data.prepared=prepared',
  *(f'--config.{name}={value}' for name, value in _TINY.items()),
)
_MAX_SECONDS = 30
# Of each program a command that goes well, but for the two that need what is
# not here: a mirror, and the model of another program. A new program needs a
# line.
_STUDY = 'config = "quickstart"\n[contestants.plain]\n'
COMMANDS = {
  'train': (*_CONFIG, '--workdir=new'),
  'decode': '--workdir=run --input=text.en --output=out',
  'fusion_jax.data.prepare': _CONFIG,
  'fusion_jax.data.fetch': 'multi30k --output=out --mirror=file:///no',
  'fusion_jax.tools.importers': '--from=marian --input=folder --output=out',
  'fusion_jax.tools.average_checkpoints': (
    '--workdir=run --average=2 --output=out'
  ),
  'fusion_jax.evaluation.compare': (
    '--source=text.en --reference=text.de --system=a=text.de '
    '--system=b=text.en --samples=20 --trials=20 --output=out'
  ),
  'fusion_jax.evaluation.contrastive': (
    '--workdir=run --input=items.json --output=out'
  ),
  'fusion_jax.analysis': 'curves --workdir=run --output=out',
  'fusion_jax.analysis.report': '--workdir=run --lines=3 --output=out.html',
  'fusion_jax.studies': 'study.toml --workdir=new --page',
  'fusion_jax.tools.export': '--workdir=run --format=stablehlo --output=out',
  'fusion_jax.tools.quickstart': '--workdir=run',
  'fusion_jax.tools.model_sizes': _CONFIG,
  'fusion_jax.tools.options': '',
  'fusion_jax.tools.scheme_sizes': '',
  # Nothing is compiled: the devices are named last, and there are none such.
  'fusion_jax.tools.aot': (*_CONFIG, '--topology=none'),
}
COMMANDS = {
  name: tuple(flags.split()) if isinstance(flags, str) else flags
  for name, flags in COMMANDS.items()
}
# A file has one in so many of the damages.
_PARTS = 8
# What reads a run directory.
_READERS = (
  'decode',
  'fusion_jax.tools.average_checkpoints',
  'fusion_jax.analysis',
  'fusion_jax.evaluation.contrastive',
)


def test_every_program_has_a_command():
  assert set(COMMANDS) == set(_PROGRAMS)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A folder with a trained run, a prepared corpus and texts."""
  folder = tmp_path_factory.mktemp('made')
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(folder)
    (folder / 'folder').mkdir()
    (folder / 'folder' / 'file').write_text('mine')
    (folder / 'binary').write_bytes(bytes(range(256)) * 99)
    (folder / 'empty').touch()
    (folder / 'study.toml').write_text(_STUDY)
    (folder / 'text.en').write_text('the cat\na dog\n')
    (folder / 'text.de').write_text('die Katze\nein Hund\n')
    item = {'source': 'the cat', 'reference': 'die Katze'}
    item |= {'contrastive': ['ein Hund']}
    (folder / 'items.json').write_text(json.dumps([item]))
    ended = entry_points.run(_PROGRAMS['train'], (*_CONFIG, '--workdir=run'))
    assert ended.code == 0, ended
  return folder


@pytest.fixture
def place(made, tmp_path, monkeypatch):
  """A copy of the folder, in which a program is started."""
  shutil.copytree(made, tmp_path, dirs_exist_ok=True)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def _check(case, folder):
  """Runs a case; whether it was refused."""
  before = {path for path in folder.rglob('*') if _is_result(path, folder)}
  ended = entry_points.run(_PROGRAMS[case.program], case.argv)
  after = {path for path in folder.rglob('*') if _is_result(path, folder)}
  assert ended.seconds < _MAX_SECONDS
  if ended.code == 0:
    assert not case.refused
    return False
  assert ended.code in (1, 2), ended
  assert len(ended.lines) == 1, ended
  assert case.told in ended.lines[0]
  assert after == before
  return True


def _is_result(path, folder):
  """Whether it is what a program may leave only where it went well."""
  name = path.relative_to(folder).parts[0]
  return path.name.endswith('.part') or name.startswith('out')


def _options():
  for name, main in _PROGRAMS.items():
    argv = COMMANDS.get(name, ())
    yield from bad_inputs.option_cases(
      name, argv, entry_points.options_of(main, argv)
    )


@pytest.mark.parametrize('case', list(_options()), ids=lambda case: case.name)
def test_options(place, case):
  _check(case, place)


@pytest.mark.parametrize('name', list(flatten(ExperimentConfig())))
def test_fields(place, name):
  """No field takes every nonsense; none ends in a traceback."""
  refused = 0
  for value in ('nonsense', '-1', 'nan', '1e300', '[[]]', '{"a": 1}'):
    argv = *COMMANDS['fusion_jax.tools.model_sizes'], f'--config.{name}={value}'
    case = bad_inputs.Case(name, 'fusion_jax.tools.model_sizes', argv)
    refused += _check(case, place)
  assert refused or isinstance(flatten(ExperimentConfig())[name], str)


def _files(folder):
  return sorted(
    path.relative_to(folder)
    for part in ('run', 'prepared')
    for path in (folder / part).rglob('*')
    if path.is_file()
  )


@pytest.mark.parametrize('damage', bad_inputs.DAMAGE)
def test_files(made, tmp_path, monkeypatch, damage):
  """Files of a run and of a prepared corpus, damaged, and a reader of each.

  The programs take turns, in another order
  for each damage.
  """
  outcomes, faults = collections.Counter(), []
  turn = list(bad_inputs.DAMAGE).index(damage)
  resumed = *_CONFIG, '--workdir=run', '--config.training.steps=6'
  files = list(enumerate(_files(made)))
  for number, file in files[turn % _PARTS :: _PARTS]:
    folder = tmp_path / str(number)
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    bad_inputs.DAMAGE[damage](folder / file)
    program = (*_READERS, 'train')[(number + turn) % (len(_READERS) + 1)]
    if program == 'train' or file.parts[0] == 'prepared':
      case = bad_inputs.Case(f'{file} {damage}', 'train', resumed)
    else:
      case = bad_inputs.Case(f'{file} {damage}', program, COMMANDS[program])
    try:
      outcomes[_check(case, folder)] += 1
    except Exception as error:
      faults.append(f'{case.name}, {case.program}: {error!r:.500}')
    shutil.rmtree(folder)
  assert not faults, '\n'.join(faults)
  assert outcomes[True]


def _texts():
  """Every text with the programs that read it."""
  for program, argv in COMMANDS.items():
    for file in ('text.en', 'text.de', 'items.json'):
      if any(file in argument for argument in argv):
        yield program, file


@pytest.mark.parametrize('damage', bad_inputs.DAMAGE)
@pytest.mark.parametrize(('program', 'file'), list(_texts()))
def test_texts(place, program, file, damage):
  bad_inputs.DAMAGE[damage](place / file)
  if damage == 'a pipe':
    # A text may come through a pipe: its reader waits for a writer.
    write = threading.Thread(target=(place / file).write_bytes, args=(b'',))
    write.daemon = True
    write.start()
  case = bad_inputs.Case(f'{file} {damage}', program, COMMANDS[program])
  _check(case, place)
