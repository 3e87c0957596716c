"""The flags that choose a config and override parts of it."""

import argparse
import os
import subprocess
import sys
from unittest import mock

import pytest

from fusion_jax.config import ExperimentConfig, flags
from fusion_jax.config.flags import add_checkpoint_flags, parse_arguments
from fusion_jax.errors import InputError

CONFIG = """
from fusion_jax.config import *
from fusion_jax.errors import InputError

def get_config(variant=''):
  if variant not in ('', 'wide'):
    raise InputError(f'unknown variant {variant!r}; there is wide')
  width = 1024 if variant else 512
  return ExperimentConfig(name='mine', model=ModelConfig(width=width))
"""


@pytest.fixture
def config_file(tmp_path):
  path = tmp_path / 'mine.py'
  path.write_text(CONFIG)
  return str(path)


def parse(*argv):
  parser = argparse.ArgumentParser()
  parser.add_argument('--workdir', default='runs/x')
  return flags.parse_experiment(list(argv), parser)


def test_a_config_and_the_programs_own_flags(config_file):
  config, arguments = parse(f'--config={config_file}', '--workdir', 'there')
  assert config.name == 'mine'
  assert config.model.width == 512
  assert arguments.workdir == 'there'


def test_a_variant_is_handed_to_the_config(config_file):
  config, _ = parse('--config', f'{config_file}:wide')
  assert config.model.width == 1024
  with pytest.raises(InputError, match="unknown variant 'huge'"):
    parse(f'--config={config_file}:huge')


def override(*pairs):
  return flags.override(ExperimentConfig(), pairs)


@pytest.mark.parametrize(
  ('name', 'text', 'expected'),
  [
    ('name', '5', '5'),
    ('training.steps', '1_000', 1_000),
    ('optimizer.peak', '1e-3', 1e-3),
    ('optimizer.peak', '2', 2.0),
    ('model.output_bias', 'true', True),
    ('model.output_bias', 'False', False),
    ('model.norm', 'pre', 'pre'),
    ('data.train', 'a.{lang}', ('a.{lang}',)),
    ('data.train', 'a.{lang}, b.{lang}', ('a.{lang}', 'b.{lang}')),
    ('data.train', "('a.{lang}', 'b.{lang}')", ('a.{lang}', 'b.{lang}')),
    ('data.train', '["a,b.{lang}"]', ('a,b.{lang}',)),
    ('data.valid', '', ()),
    ('data.valid', '[]', ()),
    ('data.tokenizer.source_model', 'a=b', 'a=b'),
    ('training.freeze', 'encoder/*,*_e[a-m]*', ('encoder/*', '*_e[a-m]*')),
  ],
)
def test_values_are_read_as_the_field_wants(config_file, name, text, expected):
  config, _ = parse(f'--config={config_file}', f'--config.{name}={text}')
  value = config
  for part in name.split('.'):
    value = getattr(value, part)
  assert value == expected
  assert type(value) is type(expected)


def test_a_value_may_follow_after_a_space(config_file):
  config, _ = parse(
    f'--config={config_file}', '--config.training.seed', '7', '--workdir=x'
  )
  assert config.training.seed == 7


def test_the_last_of_two_overrides_holds_and_the_whole_is_checked():
  config = override(('model.heads', '7'), ('model.heads', '16'))
  assert config.model.heads == 16
  with pytest.raises(InputError, match='must divide'):
    override(('model.heads', '7'))
  config = override(('model.heads', '7'), ('model.width', '14'))
  assert config.model.head_width == 2


@pytest.mark.parametrize(
  ('name', 'text', 'message'),
  [
    ('data.batch.token', '1', 'did you mean config.data.batch.tokens?'),
    ('dat.batch.tokens', '1', 'did you mean config.data?'),
    ('vocabulary_size', '9', 'mean config.data.tokenizer.vocabulary_size?'),
    ('optimizer.xyzzy', '1', 'config.optimizer has schedule, scale, peak'),
    ('data.batch', '{}', 'is a section; give one of its fields: tokens'),
    ('data', '{}', 'is a section'),
    ('name.first', 'x', 'config.name has no fields'),
    ('training.steps', 'many', 'config.training.steps: .* got .many.'),
    ('training.steps', '1.5', 'config.training.steps: '),
    ('training.steps', 'true', 'config.training.steps: .* got .true.'),
    ('optimizer.peak', '-1', 'config.optimizer.peak: must be > 0'),
    ('model.norm', 'middle', 'config.model.norm: .* got .middle.'),
  ],
)
def test_a_wrong_override_is_named(name, text, message):
  with pytest.raises(InputError, match=message) as raised:
    override((name, text))
  assert '\n' not in str(raised.value)


@pytest.mark.parametrize(
  ('argv', 'message'),
  [
    ([], 'required: --config'),
    (['--config=absent.py'], 'absent.py: no such file'),
    (['--config=absent.py:wide'], 'absent.py: no such file'),
    (['--config=absent'], 'absent: no such file, and no config of the pack'),
    (['--config=multi_30k'], "got 'multi_30k'; did you mean 'multi30k'"),
    (['--config=a/multi30k'], 'a/multi30k: no such file'),
    (
      ['--config={file}', '--wrkdir=x'],
      'unrecognized arguments: --wrkdir=x; did you mean --workdir?',
    ),
    (['--config={file}', '--work=x'], 'unrecognized arguments: --work=x'),
    (['--config={file}', '--config.model.width'], 'needs a value'),
    (['--config={file}', '--config.model.width', '--x'], 'needs a value'),
  ],
)
def test_a_wrong_command_line_is_one_line(config_file, argv, message):
  with pytest.raises(InputError, match=message) as raised:
    parse(*(each.replace('{file}', config_file) for each in argv))
  assert '\n' not in str(raised.value)


def _model(options):
  return (
    'from fusion_jax.config import *\ndef get_config():\n  '
    f'return ExperimentConfig(model=ModelConfig({options}))'
  )


@pytest.mark.parametrize(
  ('content', 'variant', 'message'),
  [
    ('x = 1', '', 'has no function get_config'),
    ('def get_config(): return 3', '', 'returns a int, it must return'),
    ('def get_config(): return 3', ':big', "has no variants, got 'big'"),
    ('x = 1\ndef (', '', 'mine.py, line 2: '),
    ('get_config = 3', '', 'has no function get_config'),
    ('def get_config(a, b): ...', '', r'mine.py: TypeError: get_config\(\) mi'),
    ('def get_config(): ...', '', 'returns a NoneType, it must return'),
    ('\nimport nothing_here', '', 'line 2: ModuleNotFoundError: No module'),
    ('def get_config():\n  return absent', '', 'line 2: NameError: name'),
    ('import sys\nsys.exit(1)', '', 'mine.py, line 2: SystemExit: 1'),
    ('assert 0, "one\\ntwo"', '', 'mine.py, line 1: AssertionError: one$'),
    ('def get_config(): return get_config()', '', 'line 1: RecursionError: '),
    ('x = 1\0', '', 'mine.py, line 1: source code string cannot contain null'),
    ('"\udcff"', '', "mine.py, line .*: .*'utf-8' codec"),
    (_model('wdth=3'), '', 'line 3: config.model.wdth: no such field; did you'),
  ],
)
def test_a_file_that_is_no_config_is_named(
  config_file, content, variant, message
):
  with open(config_file, 'w', errors='surrogateescape') as file:
    file.write(content)
  with pytest.raises(InputError, match=message) as raised:
    parse(f'--config={config_file}{variant}')
  assert '\n' not in str(raised.value)


def test_a_config_that_cannot_be_read_is_named(config_file, tmp_path):
  (tmp_path / 'folder.py').mkdir()
  with pytest.raises(InputError, match=r'folder.py: is a folder, not a Python'):
    parse(f'--config={tmp_path}/folder.py')
  denied = PermissionError(13, 'Permission denied')
  reading = 'importlib.machinery.SourceFileLoader.get_data'
  with (
    mock.patch(reading, side_effect=denied),
    pytest.raises(InputError, match=r'mine.py: PermissionError: .*denied'),
  ):
    parse(f'--config={config_file}')


def test_a_config_is_checked_whatever_made_it(config_file):
  with open(config_file, 'a') as file:
    file.write(
      '\nbuild = get_config\ndef get_config():\n  config = build()\n'
      "  object.__setattr__(config.model, 'norm', 'Pre')\n  return config\n"
    )
  with pytest.raises(InputError, match=r"mine.py: config.model.norm: .*'Pre'"):
    parse(f'--config={config_file}')


# Types are checked in all tests, but not where users are.
_WRONG_TYPES = {
  "width='3'": "line 3: config.model.width: must be a whole number, got '3'",
  "norm='Pre'": "line 3: config.model.norm: must be 'post', 'pre' or 'rezero', "
  "got 'Pre'; did you mean 'pre'?",
  "encoder='linear'": 'config.model.encoder: must be a SideConfig',
  'remat=3': 'config.model.remat: must be true or false, got 3',
  "encoder=SideConfig(fusion='em_ruting')": '4.py, line 3: '
  "config.model.*.fusion: must be 'none', 'dense', ",
}


def test_a_config_with_wrong_types_is_one_line(tmp_path):
  for number, options in enumerate(_WRONG_TYPES):
    (tmp_path / f'{number}.py').write_text(_model(options))
  program = (
    'from fusion_jax import startup\n'
    'from fusion_jax.config import flags\n'
    'load = startup.one_line_errors(flags.load_config)\n'
    f'for number in range({len(_WRONG_TYPES)}): load(f"{{number}}.py")'
  )
  ended = subprocess.run(
    [sys.executable, '-c', program],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': os.getcwd()},
    capture_output=True,
    text=True,
    check=True,
  )
  lines = ended.stderr.splitlines()
  for line, message in zip(lines, _WRONG_TYPES.values(), strict=True):
    assert message in line


def _parse(*flags):
  parser = argparse.ArgumentParser()
  add_checkpoint_flags(parser)
  return vars(parse_arguments(flags, parser))


def test_a_step_is_a_number_or_a_word():
  assert _parse('--step=120')['step'] == 120
  assert _parse('--step=last')['step'] == 'last'
  assert _parse('--average=5', '--average_of=best')['average'] == 5


@pytest.mark.parametrize('text', ['abc', '', '-3', '1_0', '1.5', '٣'])
def test_what_is_no_step_is_one_line(text):
  with pytest.raises(InputError) as error:
    _parse(f'--step={text}')
  assert str(error.value) == (
    f"argument --step: must be a step, 'best' or 'last', got {text!r}; "
    '--help lists the flags'
  )
