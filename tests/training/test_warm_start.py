"""Starting a fused model from a trained baseline."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from programs import Program, logged
from saved_runs import SavedRun
from tiers import extended_but

from fusion_jax.config import ExperimentConfig, ModelConfig
from fusion_jax.config.fusion import SideConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.testing import assert_close, drawn_parameters
from fusion_jax.training import warm_start
from fusion_jax.training.warm_start import (
  read_baseline,
  stacked,
  unstacked,
  with_baseline,
)


class _Tokenizer(Tokenizer):
  """A tokenizer of which only the digest is asked."""

  def __init__(self, digest):
    self.digest = digest


def _run(parameters, digest='a', **options):
  """What `load_run` would give."""
  model, tokenizer = _model(**options), _Tokenizer(digest)
  config = ExperimentConfig(model=model.config)
  return TrainedModel(config, model, parameters, 7, tokenizer, tokenizer)


def _model(**changes):
  config = ModelConfig(
    width=8, filter=12, heads=2, encoder_layers=3, decoder_layers=3
  )
  return Transformer(dataclasses.replace(config, **changes), 11, 11, 2)


def _both(**options):
  side = SideConfig(**options)
  return {'encoder': side, 'decoder': side}


def _started(monkeypatch, model, run):
  monkeypatch.setattr(warm_start, 'load_run', lambda workdir: run)
  tokenizers = (_Tokenizer('a'), _Tokenizer('a'))
  fresh = initial_parameters(model, 1)
  baseline = read_baseline(fresh, model, tokenizers, Path('base'))
  return with_baseline(fresh, model, baseline)


def _features(model, parameters):
  source = jnp.array([[3, 4, 5], [6, 7, 0]])
  lengths, target = jnp.array([3, 2]), jnp.array([[8, 9], [10, 3]])
  output = model.apply({'params': parameters}, source, lengths, target)
  return output.features


@pytest.mark.parametrize(
  'fused',
  extended_but(
    [_both(fusion='linear', start='baseline'), {'scan_layers': True}],
    lambda fused: 'scan_layers' in fused,
  ),
)
def test_an_exact_start_computes_what_the_baseline_computes(monkeypatch, fused):
  baseline = _model()
  trained = drawn_parameters(baseline)
  model = _model(**fused)
  started = _started(monkeypatch, model, _run(trained))
  assert_close(_features(model, started), _features(baseline, trained))


@pytest.mark.parametrize(
  'fusion', extended_but(['linear', 'mudd', 'grn'], ['linear'])
)
def test_no_array_occurs_twice(monkeypatch, fusion):
  """The first update donates every array once."""
  options = {'ways': 3} if fusion == 'grn' else {}
  fused = _both(fusion=fusion, options=options, start='baseline')
  model = _model(norm='pre', **fused)
  trained = drawn_parameters(_model(norm='pre'))
  leaves = jax.tree.leaves(
    _started(monkeypatch, model, _run(trained, norm='pre'))
  )
  assert len({id(leaf) for leaf in leaves}) == len(leaves)


def test_names_on_both_sides_are_listed(monkeypatch, caplog):
  caplog.set_level('INFO')
  trained = drawn_parameters(_model(norm='post', output_bias=True))
  model = _model(**_both(attention='multi_layer'))
  started = _started(monkeypatch, model, _run(trained))
  assert 'new here and fresh: decoder/layer_2/self_attention/' in caplog.text
  assert 'only there, not used: output_bias' in caplog.text
  np.testing.assert_array_equal(
    started['encoder']['layer_2']['self_attention']['key']['kernel'],
    trained['encoder']['layer_2']['self_attention']['key']['kernel'],
  )


def test_a_missing_backbone_parameter_is_an_error(monkeypatch):
  trained = drawn_parameters(_model(encoder_layers=2))
  with pytest.raises(InputError, match=r'lacks 16 parameters.*encoder/layer_2'):
    _started(monkeypatch, _model(**_both(fusion='linear')), _run(trained))


def test_another_size_is_an_error(monkeypatch):
  trained = drawn_parameters(_model(filter=16))
  with pytest.raises(InputError, match=r'is \(16,\) there and \(12,\) here'):
    _started(monkeypatch, _model(), _run(trained))


def test_another_tokenizer_is_an_error(monkeypatch):
  run = _run(drawn_parameters(_model()), digest='b')
  with pytest.raises(InputError, match='another source tokenizer'):
    _started(monkeypatch, _model(), run)


@pytest.mark.parametrize(
  ('name', 'value'),
  [('heads', 4), ('activation', 'silu'), ('positions', 'marian')],
)
def test_parameters_that_mean_something_else_are_an_error(
  monkeypatch, name, value
):
  run = _run(drawn_parameters(_model(**{name: value})), **{name: value})
  with pytest.raises(InputError, match=rf'model.{name} is {value!r} there and'):
    _started(monkeypatch, _model(), run)


@pytest.mark.extended
@pytest.mark.parametrize(
  ('norm', 'remat'), [('post', True), ('pre', False), ('rezero', True)]
)
def test_scan_equals_loop(norm, remat):
  loop = _model(norm=norm, **_both(fusion='average'))
  scan = _model(
    norm=norm, scan_layers=True, remat=remat, **_both(fusion='average')
  )
  parameters = drawn_parameters(loop)
  together = stacked(parameters)
  fresh = jax.eval_shape(lambda: initial_parameters(scan, 0))
  assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(jnp.shape, together)

  def loss(model):
    return lambda parameters: (_features(model, parameters) ** 3).sum()

  np.testing.assert_allclose(
    loss(loop)(parameters), loss(scan)(together), rtol=1e-5
  )
  expected = jax.grad(loss(loop))(parameters)
  got = unstacked(jax.grad(loss(scan))(together))
  assert_close(got, expected)


@pytest.mark.parametrize('base', extended_but(['base', 'none'], ['base']))
def test_a_refused_baseline_leaves_no_run_directory(tmp_path, base):
  SavedRun(tmp_path / 'base').save({3: None})
  program = Program(tmp_path)
  code, err = program.run(
    tmp_path / 'run', extra=[f'--init_from={tmp_path / base}']
  )
  assert code == 2, err
  assert err.splitlines()[-1].startswith('error: ')
  assert not (tmp_path / 'run').exists()


@pytest.mark.extended
def test_train_from_a_baseline_and_watch_the_fusion(tmp_path):
  program, run = Program(tmp_path), {'training__steps': 2}
  code, err = program.run(tmp_path / 'base', **run)
  assert code == 0, err
  code, err = program.run(
    tmp_path / 'fused',
    extra=[f'--init_from={tmp_path / "base"}'],
    model__decoder__fusion='em_routing',
    training__diversity=1.0,
    **run,
  )
  assert code == 0, err
  assert 'new here and fresh: decoder/' in err
  trained, seen = (
    logged(tmp_path / 'fused', kind)[-1] for kind in ('train', 'fusion')
  )
  assert 0 <= trained['diversity'] <= 2
  assert trained['encoder_gradient_norm_1'] > 0
  entropy = seen['decoder/read_out/coupling_entropy_0']
  assert entropy == pytest.approx(np.log(16), rel=1e-4)
