"""Parameters of a model that are drawn and not initialised."""

import jax
import jax.numpy as jnp
import numpy as np

from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
)


def drawn_parameters(
  model: Transformer, seed: int = 1, scale: float = 0.3
) -> Parameters:
  """Normal: a generic point, where no zero hides an error.

  Nothing is compiled, as the initial parameters are, an operation at a time.
  """
  generator = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(generator.normal(0, scale, x.shape), x.dtype),
    jax.eval_shape(lambda: initial_parameters(model, 0)),
  )
