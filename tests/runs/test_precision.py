"""Models whose matrices are int8 or bfloat16, and when they are used."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, parameters
from copying import LINES, make_tokenizer, random_run

from fusion_jax.config import PRESETS, DecodingConfig, ModelConfig, SideConfig
from fusion_jax.decoding.certify import certify
from fusion_jax.decoding.score import token_log_probabilities
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.runs import precision
from fusion_jax.testing import sample_inputs

# Largest changes of a log-probability in a model of width 8.
_LARGEST = {'bfloat16': 0.1, 'int8': 0.3}

# The others are in the long run.
_SHORT = {'none-post', 'gtrans'}


@pytest.mark.parametrize('name', parameters(core=_SHORT))
def test_every_scheme_predicts_nearly_the_same(name):
  config = CASES[name]
  model = Transformer(config, 40, 40, 2)
  wide = initial_parameters(model, 0)
  source, target = map(jnp.asarray, sample_inputs())
  lengths = jnp.full(len(source), source.shape[1])

  @jax.jit
  def log_probabilities(parameters):
    output = model.apply({'params': parameters}, source, lengths, target)
    combine = config.decoder.combine
    return token_log_probabilities(output, target, combine)

  expected = log_probabilities(wide)
  for kind, largest in _LARGEST.items():
    narrow = precision.narrow(model, wide, kind)
    gap = np.abs(log_probabilities(narrow) - expected).max()
    assert 0 < gap < largest, kind


def test_the_matrices_of_base_take_a_third_of_the_memory():
  model = Transformer(ModelConfig(), 32_000, 32_000, 2)
  wide = jax.eval_shape(lambda: initial_parameters(model, 0))
  narrow = jax.eval_shape(lambda p: precision.narrow(model, p, 'int8'), wide)

  def size(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))

  assert size(narrow) <= 0.35 * size(wide)


@pytest.mark.extended
def test_translations_do_not_depend_on_their_batch():
  run = random_run(make_tokenizer(), 0)
  narrow = precision.narrow(run.model, run.parameters, 'int8')
  run = dataclasses.replace(run, parameters=narrow, precision='int8')
  options = DecodingConfig(beam_size=2, max_source_length=64, batch_tokens=128)
  lines = [(n, line) for n, line in enumerate(LINES, 1) if line.strip()]
  certificate = certify(run, options, lines, 2)
  assert not certificate.fault


def test_the_scorer_of_hops_is_narrow():
  config = dataclasses.replace(PRESETS['tiny'], encoder=SideConfig('hops'))
  model = Transformer(config, 40, 40, 2)
  narrow = precision.narrow(model, initial_parameters(model, 0), 'int8')
  scorer = narrow['encoder']['read_out']['scorer_hidden']['kernel']
  assert scorer['int8'].dtype == jnp.int8


@pytest.mark.parametrize('faster', [True, False])
def test_float32_is_used_where_it_is_as_fast(faster, monkeypatch, caplog):
  seconds = {'float32': 1.0, 'narrow': 0.5 if faster else 1.0}
  monkeypatch.setattr(
    precision,
    '_seconds',
    lambda x, matrix: seconds[
      'narrow' if isinstance(matrix, dict) else str(matrix.dtype)
    ],
  )
  assert precision.usable('int8') == ('int8' if faster else 'float32')
  assert ('multiplies float32 as fast' in caplog.text) is not faster
  assert precision.usable('float32') == 'float32'
