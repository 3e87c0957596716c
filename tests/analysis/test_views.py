"""The views of fusion schemes: who has them, and the program that looks."""

import dataclasses
import json

import jax.numpy as jnp
import pytest
from cases import norm_for, reading
from fused_runs import SOURCES, TARGETS, assert_not_blank, fused_run, make_run
from programs import one_line
from saved_runs import SavedRun

from fusion_jax.analysis import views
from fusion_jax.analysis.__main__ import main
from fusion_jax.analysis.views import VIEWS, check_view, look_at, views_of
from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES

# The views of every scheme; those without any have no weights of layers.
SCHEME_VIEWS = {
  'dense': set(),
  'linear': {'layer_weights'},
  'iterative': {'exploitation'},
  'hierarchical': {'exploitation'},
  'average': set(),
  'feed_forward': set(),
  'hops': {'hops', 'position_weights'},
  'dynamic_combination': {'layer_weights', 'position_weights'},
  'dynamic_routing': {'couplings', 'position_weights'},
  'em_routing': {'couplings', 'position_weights'},
  'gtrans': {'groups', 'group_bleu'},
  'transparent': {'layer_weights'},
  'dlcl': {'layer_weights'},
  'mudd': {'layer_weights', 'position_weights'},
  'grn': {'layer_weights', 'position_weights'},
  'hyper_connections': {'position_weights'},
  'attention_residuals': {'position_weights'},
  'surface_fusion': {'surface'},
}
OURS = set().union(*SCHEME_VIEWS.values()) | {'gates'}


def _views(**sides):
  return {view.name for view in views_of(ModelConfig(**sides))} & OURS


def test_every_scheme_has_its_views_on_both_sides():
  assert SCHEME_VIEWS.keys() == SCHEMES.keys()
  for name, scheme in SCHEMES.items():
    for side in scheme.modules:
      # The encoder's groups do not translate.
      gone = {'group_bleu'} if side == 'encoder' else set()
      fused = {side: SideConfig(fusion=name)}
      found = _views(**fused, norm=norm_for(name))
      assert found == SCHEME_VIEWS[name] - gone, (name, side)


def test_what_is_inside_attention_has_its_views():
  multi = reading('multi_layer', layers=2)
  lexical = reading('shortcut', source='lexical')
  assert _views(encoder=multi) == {'exploitation'}
  assert _views(decoder=lexical) == {'gates'}
  assert _views() == set()
  # A tree of one layer has no node.
  alone = SideConfig(fusion='hierarchical')
  assert _views(encoder=alone, encoder_layers=1) == set()


@pytest.mark.parametrize('name', sorted(OURS))
def test_a_model_without_it_is_told_in_one_line(name):
  with pytest.raises(InputError) as error:
    check_view(VIEWS[name], ModelConfig(), 'runs/plain')
  message = str(error.value)
  assert message.startswith(f'{name}: needs a model with ')
  assert ', which runs/plain is not; its views are similarity' in message
  assert '\n' not in message


def test_a_run_that_has_diverged_is_refused(tmp_path):
  run = make_run(
    {'encoder/read_out/node_2/norm/scale': jnp.nan},
    encoder=SideConfig(fusion='iterative'),
  )
  analysed = fused_run(run, tmp_path)
  message = 'of step 7 are not finite, encoder/read_out/node_2/norm/scale among'
  with pytest.raises(InputError, match=message):
    look_at(VIEWS['exploitation'], analysed, tmp_path / 'analysis')
  assert not (tmp_path / 'analysis').exists()
  # What it logged can be looked at.
  row = {'step': 7, 'kind': 'train', 'encoder_gradient_norm_1': 2.0}
  (tmp_path / 'metrics.jsonl').write_text(f'{json.dumps(row)}\n')
  look_at(VIEWS['gradients'], analysed, tmp_path / 'analysis')
  assert_not_blank(tmp_path / 'analysis/gradients.png')


@pytest.fixture(scope='module')
def workdir(tmp_path_factory):
  """A run directory of a model with nodes, gates and groups, and a text."""
  folder = tmp_path_factory.mktemp('runs') / 'run'
  model = ModelConfig(
    **{'width': 16, 'filter': 24, 'heads': 2},
    **{'encoder_layers': 2, 'decoder_layers': 2},
    encoder=dataclasses.replace(reading('shortcut'), fusion='iterative'),
    decoder=SideConfig('gtrans'),
  )
  SavedRun(folder, model).save({7: 1.0})
  (folder / 'metrics.jsonl').touch()
  for name, lines in (('source', SOURCES), ('target', TARGETS)):
    text = folder.with_name(f'{name}.txt')
    text.write_text(''.join(f'{line}\n' for line in lines))
  return folder


def _flags(workdir):
  text = [
    f'--{side}={workdir.with_name(f"{side}.txt")}'
    for side in ('source', 'target')
  ]
  return [f'--workdir={workdir}', *text]


def test_the_program_writes_what_it_sees(workdir, tmp_path, capsys):
  names = ['exploitation', 'gates', 'groups']
  flags = [*_flags(workdir), '--lines=4', f'--output={tmp_path}']
  assert main([*names, *flags]) == 0
  out = capsys.readouterr().out.splitlines()
  assert [line.split(':')[0] for line in out] == names
  for line, name in zip(out, names, strict=True):
    written = json.loads((tmp_path / f'{name}.json').read_text())
    assert (written['view'], written['step']) == (name, 7)
    assert line == f'{name}: {written["summary"]}'
    assert_not_blank(tmp_path / f'{name}.png')
  gates = json.loads((tmp_path / 'gates.json').read_text())['numbers']
  # The first position of each of four lines.
  positions = gates['encoder self-attention']['positions']['position']
  assert positions[0] == 4


def test_all_is_without_views_of_metrics_that_are_not_there(
  workdir, tmp_path, monkeypatch, capsys, caplog
):
  (workdir / 'metrics.jsonl').unlink()
  seen = [VIEWS['gradients'], VIEWS['groups']]
  monkeypatch.setattr(views, 'views_of', lambda _: seen)
  flags = [*_flags(workdir), '--lines=4', f'--output={tmp_path}']
  assert main(['all', *flags]) == 0
  assert capsys.readouterr().out.startswith('groups: ')
  assert 'gradients is left out: ' in caplog.text
  assert main(['gradients', *flags]) == 2


def test_the_program_refuses_in_one_line(workdir, tmp_path, capsys):
  output = tmp_path / 'analysis'
  flags = [*_flags(workdir), f'--output={output}']
  assert main(['exploitation', 'hops', *flags]) == 2
  captured = capsys.readouterr()
  error = one_line(captured.err)
  assert error.startswith('error: hops: needs a model with multi-hop fusion')
  assert captured.out == ''
  assert not output.exists()
