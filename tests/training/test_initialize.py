"""Starting a fused model from a trained baseline."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fusion_jax.config import ModelConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.fusion_options import MultiLayerOptions, SideConfig
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.training import initialize
from fusion_jax.training.initialize import stacked, unstacked, with_baseline

_ROOT = Path(__file__).parents[2]


class _Tokenizer(Tokenizer):
  """A tokenizer of which only the digest is asked."""

  def __init__(self, digest):
    self.digest = digest


class _Run:
  """What `load_run` would give."""

  def __init__(self, parameters, digest='a'):
    self.parameters = parameters
    self.source_tokenizer = self.target_tokenizer = _Tokenizer(digest)
    self.step = 7


def _model(**changes):
  config = ModelConfig(
    width=8, filter=12, heads=2, encoder_layers=3, decoder_layers=3
  )
  return Transformer(dataclasses.replace(config, **changes), 11, 11, 2)


def _both(**options):
  side = SideConfig(**options)
  return {'encoder': side, 'decoder': side}


def _started(monkeypatch, model, run):
  monkeypatch.setattr(initialize, 'load_run', lambda workdir: run)
  tokenizers = (_Tokenizer('a'), _Tokenizer('a'))
  return with_baseline(
    initial_parameters(model, 1), model, tokenizers, Path('base')
  )


def _features(model, parameters):
  source = jnp.array([[3, 4, 5], [6, 7, 0]])
  lengths, target = jnp.array([3, 2]), jnp.array([[8, 9], [10, 3]])
  output = model.apply({'params': parameters}, source, lengths, target)
  return output.features


@pytest.mark.parametrize(
  'fused',
  [
    _both(fusion='linear', start='baseline'),
    _both(fusion='dynamic_combination', start='baseline'),
    {'scan_layers': True},
  ],
)
def test_an_exact_start_computes_what_the_baseline_computes(monkeypatch, fused):
  baseline = _model()
  trained = initial_parameters(baseline, 0)
  model = _model(**fused)
  started = _started(monkeypatch, model, _Run(trained))
  np.testing.assert_allclose(
    _features(model, started), _features(baseline, trained), atol=1e-6
  )


def test_names_on_both_sides_are_listed(monkeypatch, caplog):
  caplog.set_level('INFO')
  trained = initial_parameters(_model(norm='post', output_bias=True), 0)
  model = _model(**_both(multi_layer=MultiLayerOptions(layers=2)))
  started = _started(monkeypatch, model, _Run(trained))
  assert 'new here and fresh: decoder/layer_2/self_attention/' in caplog.text
  assert 'only there, not used: output_bias' in caplog.text
  np.testing.assert_array_equal(
    started['encoder']['layer_2']['self_attention']['key']['kernel'],
    trained['encoder']['layer_2']['self_attention']['key']['kernel'],
  )


def test_a_missing_backbone_parameter_is_an_error(monkeypatch):
  trained = initial_parameters(_model(encoder_layers=2), 0)
  with pytest.raises(InputError, match=r'lacks 16 parameters.*encoder/layer_2'):
    _started(monkeypatch, _model(**_both(fusion='linear')), _Run(trained))


def test_another_size_is_an_error(monkeypatch):
  trained = initial_parameters(_model(filter=16), 0)
  with pytest.raises(InputError, match=r'is \(16,\) there and \(12,\) here'):
    _started(monkeypatch, _model(), _Run(trained))


def test_another_tokenizer_is_an_error(monkeypatch):
  run = _Run(initial_parameters(_model(), 0), digest='b')
  with pytest.raises(InputError, match='another source tokenizer'):
    _started(monkeypatch, _model(), run)


@pytest.mark.parametrize('norm', ['post', 'pre', 'rezero'])
@pytest.mark.parametrize('remat', [False, True])
def test_scan_equals_loop(norm, remat):
  loop = _model(norm=norm, **_both(fusion='average'))
  scan = _model(
    norm=norm, scan_layers=True, remat=remat, **_both(fusion='average')
  )
  parameters = initial_parameters(loop, 0)
  together = stacked(parameters)
  assert jax.tree.map(jnp.shape, initial_parameters(scan, 0)) == jax.tree.map(
    jnp.shape, together
  )

  def loss(model):
    return lambda parameters: (_features(model, parameters) ** 3).sum()

  np.testing.assert_allclose(
    loss(loop)(parameters), loss(scan)(together), rtol=1e-5
  )
  expected = jax.grad(loss(loop))(parameters)
  got = unstacked(jax.grad(loss(scan))(together))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    expected,
    got,
  )


def _train(workdir, *flags):
  command = [
    sys.executable,
    'train.py',
    '--config=configs/quickstart.py',
    f'--workdir={workdir}',
    '--config.model.width=16',
    '--config.model.filter=32',
    '--config.model.heads=2',
    '--config.data.embedded_pairs=500',
    '--config.data.tokenizer.vocabulary_size=500',
    f'--config.data.prepared={workdir.parent / "prepared"}',
    '--config.training.log_every=2',
    '--config.training.validate_every=2',
    '--config.training.translate_sentences=2',
    *flags,
  ]
  return subprocess.run(
    command,
    cwd=_ROOT,
    capture_output=True,
    text=True,
    check=False,
    timeout=300,
  )


def test_train_from_a_baseline_and_watch_the_fusion(tmp_path):
  base = _train(tmp_path / 'base', '--config.training.steps=2')
  assert base.returncode == 0, base.stderr
  fused = _train(
    tmp_path / 'fused',
    '--config.training.steps=2',
    f'--init_from={tmp_path / "base"}',
    '--config.model.decoder.fusion=em_routing',
    '--config.training.diversity=1.0',
  )
  assert fused.returncode == 0, fused.stderr
  assert 'new here and fresh: decoder/' in fused.stderr
  lines = [
    json.loads(line)
    for line in (tmp_path / 'fused' / 'metrics.jsonl').read_text().splitlines()
  ]
  by_kind = {line['kind']: line for line in lines}
  assert 0 <= by_kind['train']['diversity'] <= 2
  assert by_kind['train']['encoder_gradient_norm_1'] > 0
  entropy = by_kind['fusion']['decoder/read_out/coupling_entropy_0']
  assert entropy == pytest.approx(np.log(16), rel=1e-4)
