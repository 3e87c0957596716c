"""Models whose matrices are int8 or bfloat16, and when they are used."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, parameters
from copying import LINES, make_tokenizer, random_run

from fusion_jax.config import DecodingConfig, ModelConfig, SideConfig
from fusion_jax.decoding.certify import certify
from fusion_jax.decoding.score import token_log_probabilities
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.runs import precision
from fusion_jax.testing import TINY, sample_inputs

# Largest changes of a log-probability in a model of width 8.
_LARGEST = {'bfloat16': 0.1, 'int8': 0.3}

# The others are in the long run.
_SHORT = {'none-post', 'gtrans'}


def gaps_of(
  model: Transformer, *kinds: precision.Precision
) -> dict[precision.Precision, float]:
  """The largest change of a log-probability of a target token."""
  wide = initial_parameters(model, 0)
  source, target = map(jnp.asarray, sample_inputs())
  lengths = jnp.full(len(source), source.shape[1])

  @jax.jit
  def log_probabilities(parameters):
    output = model.apply({'params': parameters}, source, lengths, target)
    combine = model.config.decoder.combine
    return token_log_probabilities(output, target, combine)

  expected = log_probabilities(wide)
  narrow = {kind: precision.narrow(model, wide, kind) for kind in kinds}
  return {
    kind: np.abs(log_probabilities(parameters) - expected).max()
    for kind, parameters in narrow.items()
  }


@pytest.mark.parametrize('name', parameters(core=_SHORT))
def test_every_scheme_predicts_nearly_the_same(name):
  model = Transformer(CASES[name], 40, 40, 2)
  for kind, gap in gaps_of(model, *_LARGEST).items():
    assert 0 < gap < _LARGEST[kind], kind


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


@pytest.mark.parametrize(
  ('fusion', 'options', 'path'),
  [
    ('hops', {}, ('scorer_hidden',)),
    ('hops', {'independent': 'per_layer'}, ('scorer_hidden',)),
    ('linear', {'factored': False}, ()),
    ('dynamic_routing', {'vote_projection': 'block'}, ('votes', 'context')),
  ],
)
def test_matrices_beside_dense_are_narrow_too(fusion, options, path):
  side = SideConfig(fusion, options)
  model = Transformer(dataclasses.replace(TINY, encoder=side), 40, 40, 2)
  narrow = precision.narrow(model, initial_parameters(model, 0), 'int8')
  module = narrow['encoder']['read_out']
  for name in path:
    module = module[name]
  assert module['kernel']['int8'].dtype == jnp.int8
  assert gaps_of(model, 'int8')['int8'] < _LARGEST['int8']


@pytest.mark.parametrize('faster', [True, False])
def test_float32_is_used_where_it_is_as_fast(faster, monkeypatch, caplog):
  narrow = 0.5 if faster else 1.0
  monkeypatch.setattr(
    precision,
    '_seconds',
    lambda rows, *matrices: [
      narrow if isinstance(matrix, dict) else 1.0 for matrix in matrices
    ],
  )
  assert precision.usable('int8') == ('int8' if faster else 'float32')
  assert ('multiplies float32 as fast' in caplog.text) is not faster
  assert precision.usable('float32') == 'float32'
