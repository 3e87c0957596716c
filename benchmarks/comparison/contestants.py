"""What is compared: the plain model, a wide one, and every fusion scheme.

Sizes and operations are those of shapes: nothing is allocated or run. JAX is
kept to the CPU, so that a GPU is left to the programs that train.
"""

import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from benchmarks.comparison.plan import Entry
from benchmarks.schemes import BASELINE, ONLY_FROM_SCRATCH, norms_of, schemes
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import Row, changed
from fusion_jax.data.batching import Batch
from fusion_jax.models.losses import zero_sums
from fusion_jax.models.transformer import Transformer, initial_parameters
from fusion_jax.tools.aot.matmul_flops import product_gflop
from fusion_jax.tools.model_sizes import parameter_rows
from fusion_jax.training.step import make_eval_step

jax.config.update('jax_platforms', 'cpu')

# The plain model with as many parameters as the heaviest scheme.
WIDE = 'wide'
# The filter of the wide model is a multiple of this.
_MULTIPLE = 8
# Subwords of the sentences whose operations are counted, and the start symbol.
_LENGTH, _START = 16, 2


class Contestants:
  """The contestants for one plain model.

  Attributes:
    names: of all of them, the plain model first and the wide one last.
  """

  def __init__(self, plain: ExperimentConfig):
    self._plain = plain
    table = schemes(plain.model.encoder_layers)
    self._rows = {name: scheme.row for name, scheme in table.items()}
    self.names = (*self._rows, WIDE)

  def row(self, name: str) -> Row:
    """What a contestant changes in the config of the plain model."""
    return self._wide if name == WIDE else self._rows[name]

  def entry(self, name: str) -> Entry:
    """What the plan has to know of a contestant."""
    is_plain = name in (BASELINE, WIDE)
    has_norm = 'model.norm' in self.row(name)
    own = sizes(self._config(name)).keys() - sizes(self._plain).keys()
    only_scratch = name in ONLY_FROM_SCRATCH
    is_tuned = bool(own) and not (is_plain or only_scratch)
    norms = norms_of(self.row(name))
    return Entry(name, is_tuned, has_norm, only_scratch, is_plain, norms)

  def gflop(self, name: str) -> float:
    """10^9 operations of the products of a forward pass over a batch."""
    return gflop(self._config(name))

  def _config(self, name: str) -> ExperimentConfig:
    return changed(self._plain, self.row(name))

  @functools.cached_property
  def _wide(self) -> Row:
    """The narrowest filter with which no scheme has more parameters."""
    most = max(count(self._config(name)) for name in self._rows)
    filter_width = self._plain.model.filter
    wider = changed(self._plain, {'model.filter': filter_width + _MULTIPLE})
    least = count(self._plain)
    steps = math.ceil((most - least) / (count(wider) - least))
    return {'model.filter': filter_width + _MULTIPLE * steps}


@functools.cache
def sizes(config: ExperimentConfig) -> Mapping[str, int]:
  """The size of every parameter of a config's model, by its name."""
  return {name: math.prod(shape) for name, shape, _ in parameter_rows(config)}


def count(config: ExperimentConfig) -> int:
  """The parameters of a config's model."""
  return sum(sizes(config).values())


@functools.cache
def gflop(config: ExperimentConfig) -> float:
  """10^9 operations of the products of a forward pass over one batch.

  Those of training steps are in the same proportion: backward, each product is
  done twice more.
  """
  vocabulary = config.data.tokenizer.vocabulary_size
  model = Transformer(config.model, vocabulary, vocabulary, _START)
  parameters = jax.eval_shape(lambda: initial_parameters(model, 0))
  # The sums of one shard of the rows.
  sums = jax.eval_shape(lambda: jax.tree.map(lambda x: x[None], zero_sums()))
  rows = max(config.data.batch.tokens // _LENGTH, 1)
  ids = jax.ShapeDtypeStruct((rows, _LENGTH), jnp.int32)
  lengths = jax.ShapeDtypeStruct((rows,), jnp.int32)
  step = make_eval_step(model, config.training.loss_chunk)
  traced = step.trace(parameters, sums, Batch(ids, ids, lengths, lengths))
  return product_gflop(traced.jaxpr)
