"""The reference of options has every field of a config, and says what is so."""

from pathlib import Path

import pytest

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.serialization import flatten
from fusion_jax.tools import options

_PAGE = options.page()


def _entry(name: str) -> str:
  """The text of an option, up to the next heading."""
  _, _, rest = _PAGE.partition(f'### <a id="{name}"></a>`{name}`\n')
  return rest.partition('\n#')[0]


def test_every_field_is_there_once():
  sides = {
    name.replace(f'model.{side}', 'model.SIDE')
    for name in flatten(ExperimentConfig())
    for side in ('encoder', 'decoder')
    if name.startswith(f'model.{side}.')
  }
  others = {
    name
    for name in flatten(ExperimentConfig())
    if not name.startswith(('model.encoder.', 'model.decoder.'))
  }
  # The options of a scheme have anchors of their own.
  every = options.every_option()
  names = [option.name for option in every if option.name == option.anchor]
  assert len(names) == len(set(names))
  assert sides | others <= set(names)
  directions = {name for name in names if '.NUMBER.' in name}
  # The options of a scheme are listed with the scheme.
  of_schemes = {'model.SIDE.options', 'model.SIDE.attention_options'}
  assert set(names) == sides | others | directions | of_schemes
  assert all(_PAGE.count(f'</a>`{name}`\n') == 1 for name in names)


def test_types_bounds_defaults_and_readers():
  assert 'default `1.0`' in _entry('data.directions.NUMBER.weight')
  assert 'required' in _entry('data.directions.NUMBER.train')
  beam = _entry('decoding.beam_size')
  assert 'whole number from 1 up to 4,096; default `4`' in beam
  rate = _entry('training.ema')
  assert 'number from 0 below 1; default `0.0`' in rate
  kinds = _entry('parallel.rules.vocab')
  assert 'empty, `fsdp`, `tensor`; default `tensor`' in kinds
  assert 'default `false`' in _entry('model.scan_layers')
  _, _, one_sided = _PAGE.partition('id="fusion.gtrans.single_group_norm"')
  assert 'read only by the encoder' in one_sided.partition('\n#')[0]


def test_what_a_resumed_run_may_change():
  assert 'resume: yes' in _entry('training.steps')
  assert 'resume: yes' in _entry('decoding.beam_size')
  assert 'resume: yes' in _entry('data.directions.NUMBER.test')
  assert 'resume: no' in _entry('data.directions.NUMBER.train')
  assert 'resume: no' in _entry('model.width')


def test_help_is_shown_literally():
  assert '&lt;2{lang}&gt;' in _entry('data.source_tag')
  assert '\\_embedding' in _entry('training.freeze')
  assert '`peak`' in _entry('optimizer.schedule')


def test_the_guide_has_this_page():
  guide = Path(__file__).parents[2] / 'docs' / 'options.md'
  assert guide.read_text('utf-8') == _PAGE, 'fusion-jax options --markdown'


@pytest.mark.parametrize(
  ('name', 'first', 'count'),
  [
    ('model.width', 'model.width', 1),
    ('beam_size', 'decoding.beam_size', 1),
    ('data.filter', 'data.filter.max_length', 3),
    ('model.encoder.fusion', 'model.SIDE.fusion', 1),
    ('fusion.transparent', 'model.SIDE.options.dropout', 4),
  ],
)
def test_options_are_found_by_name_section_and_scheme(name, first, count):
  found = options.find(name)
  assert (found[0].name, len(found)) == (first, count)


def test_the_command_prints_facts_and_refuses_what_is_not_there(capsys):
  assert options.main(['beam_size']) == 0
  assert 'whole number from 1' in capsys.readouterr().out
  assert options.main(['model.widht']) == 2
  said = capsys.readouterr().err
  assert said == "error: no option 'model.widht'; did you mean model.width?\n"
