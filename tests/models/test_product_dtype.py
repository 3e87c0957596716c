"""Training with products of bfloat16, against float32."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, parameters

from fusion_jax.models.losses import cross_entropy
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.testing import sample_inputs


# The others are in the long run.
@pytest.mark.parametrize('name', parameters(core={'none-post'}))
def test_loss_and_gradients_are_nearly_those_of_float32(name):
  source, target = map(jnp.asarray, sample_inputs())
  lengths = jnp.full(len(source), source.shape[1])
  limits = jnp.full(len(target), target.shape[1])
  results = []
  for dtype in ('float32', 'bfloat16'):
    config = dataclasses.replace(CASES[name], product_dtype=dtype)
    model = Transformer(config, 40, 40, 2)

    def loss(values, model=model):
      output = model.apply({'params': values}, source, lengths, target)
      return cross_entropy(
        output.features,
        output.output,
        target,
        limits,
        0.1,
        0,
        output.log_weights,
        model.config.decoder.combine,
      ).loss

    step = jax.jit(jax.value_and_grad(loss))
    results.append(step(initial_parameters(model, 0)))
  (exact, exact_slopes), (loss, slopes) = jax.device_get(results)
  assert loss != exact
  assert loss == pytest.approx(float(exact), rel=0.01)
  ours, theirs = (
    np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
    for tree in (slopes, exact_slopes)
  )
  cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
  assert cosine > 0.95
