import argparse

import pytest

from fusion_jax.cli.checkpoint_flags import add_checkpoint_flags
from fusion_jax.config.flags import parse_arguments
from fusion_jax.errors import InputError


def _parse(*flags):
  parser = argparse.ArgumentParser()
  add_checkpoint_flags(parser)
  return vars(parse_arguments(flags, parser))


def test_defaults_and_values():
  assert _parse() == {
    'step': 'best',
    'average': 1,
    'average_of': 'last',
    'parameters': None,
  }
  flags = '--step=120', '--average=5', '--average_of=best', '--parameters=last'
  assert _parse(*flags) == {
    'step': 120,
    'average': 5,
    'average_of': 'best',
    'parameters': 'last',
  }
  assert _parse('--step=last')['step'] == 'last'


@pytest.mark.parametrize('text', ['abc', '', '-3', '1_0', '1.5', '٣'])
def test_what_is_no_step_is_one_line(text):
  with pytest.raises(InputError) as error:
    _parse(f'--step={text}')
  assert str(error.value) == (
    f"argument --step: must be a step, 'best' or 'last', got {text!r}; "
    '--help lists the flags'
  )
