"""Every command in the documents is one that its program takes."""

import argparse
import importlib.util
import re
import shlex

import pytest
from pages import PAGES, ROOT, commands

from fusion_jax.__main__ import COMMANDS, main
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config, override
from fusion_jax.config.serialization import flatten
from fusion_jax.tools.aot import __main__ as aot

_OVERRIDE = re.compile(r'--config\.([\w.]+)=(.*)', re.S)
_FIELDS = flatten(ExperimentConfig())
# The schemes know the names below these; a user's scheme has its own.
_OF_SCHEMES = re.compile(r'model\.\w+\.(attention_)?options\.\w+')


class _Parsed(BaseException):
  """Ends a program when its flags have been read."""


def _words(command: str) -> list[str]:
  """The words of a command, without its redirections and a shell's "$@"."""
  words = shlex.split(command, comments=True)
  return [word for word in words if word[0] not in '<>$']


def _config(name: str) -> ExperimentConfig:
  """A config of the package; the default one for a file of the reader."""
  own = name.endswith(('.py', '.json')) or name.rpartition(':')[2].isupper()
  return ExperimentConfig() if own else load_config(name)


def _check_fields(words: list[str]) -> None:
  """Apply the overrides to the config, as far as the documents name it."""
  overrides = [m.groups() for m in map(_OVERRIDE.fullmatch, words) if m]
  for name, _ in overrides:
    assert name in _FIELDS or _OF_SCHEMES.fullmatch(name), f'no option {name}'
  named = [word[9:] for word in words if word.startswith('--config=')]
  user_code = any(word.startswith('--user_dir=') for word in words)
  if not named or user_code or any(value.isupper() for _, value in overrides):
    return
  override(_config(named[0]), overrides)


@pytest.fixture
def parse(monkeypatch):
  """Return a function that runs a command until its flags have been read."""
  original = argparse.ArgumentParser.parse_known_args

  def parse_known_args(self, argv, namespace=None):
    found = original(self, argv, namespace)
    if found[1]:
      return found  # The program refuses unknown flags.
    raise _Parsed

  def run(program, words):
    with pytest.raises(_Parsed):
      program(words)

  monkeypatch.setattr(
    argparse.ArgumentParser, 'parse_known_args', parse_known_args
  )
  return run


@pytest.mark.parametrize('page', PAGES, ids=str)
def test_programs_take_the_commands(page, parse):
  for command in commands((ROOT / page).read_text('utf-8'), 'fusion-jax'):
    name, *flags = words = _words(command)
    if name in ('--version', '--help') or (name in COMMANDS and not flags):
      continue  # A mention of the command.
    assert name in COMMANDS, f'no command {name}'
    parse(main, words)
    _check_fields(flags)


def test_the_compiler_for_absent_chips_takes_its_commands(parse):
  text = (ROOT / 'docs' / 'pods.md').read_text('utf-8')
  for command in commands(text, 'python -m fusion_jax.tools.aot'):
    parse(aot.main, _words(command))
    _check_fields(_words(command))


@pytest.mark.parametrize('page', PAGES, ids=str)
def test_modules_exist_and_have_no_shorter_name(page):
  short = {f'fusion_jax.{module}' for module, _ in COMMANDS.values()}
  text = (ROOT / page).read_text('utf-8')
  for module in re.findall(r'python -m ([\w.]+)', text):
    assert importlib.util.find_spec(module), f'no module {module}'
    assert module not in short
    assert f'{module}.__main__' not in short


def test_a_wrong_flag_is_found(parse):
  with pytest.raises(pytest.fail.Exception):
    parse(main, ['decode', '--workdir=DIR', '--baem_size=5'])
  with pytest.raises(AssertionError, match='no option'):
    _check_fields(['--config.model.widht=5'])


def test_commands_are_found():
  text = (
    'Use `fusion-jax a\n--b`.\n\n    fusion-jax c \\\n      --d <x\n\n'
    "```sh\necho 'x' | fusion-jax e\n```\n\nfusion-jax is not a command here.\n"
  )
  found = commands(text, 'fusion-jax')
  assert [_words(command) for command in found] == [
    ['c', '--d'],
    ['e'],
    ['a', '--b'],
  ]
