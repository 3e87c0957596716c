"""The search of a batch as one function of arrays, exported by `jax.export`.

Axis letters: B batch, S source, N hypotheses returned, T target.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jaxtyping import Array, Float32, Int32

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.batches import DecodeShape, shortest_target
from fusion_jax.decoding.ensemble import alone
from fusion_jax.decoding.model_step import (
  SearchRows,
  SearchSettings,
  Source,
  search_batch,
  search_settings,
)
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.search.constraints import Requirements
from fusion_jax.search.hypotheses import Hypotheses

# Results of a program: fields of `Hypotheses`.
RESULTS = ('tokens', 'lengths', 'scores', 'log_probabilities')

# Arrays by name, with '/' between the parts.
Weights = dict[str, Float32[Array | np.ndarray, '...']]


@dataclasses.dataclass(frozen=True)
class SearchProgram:
  """The search of a run for one shape of a batch."""

  run: TrainedModel
  options: DecodingConfig
  shape: DecodeShape
  n_best: int = 1

  @property
  def settings(self) -> SearchSettings:
    """The settings of the search."""
    return search_settings(self.options, alone(self.run), self.n_best)

  @property
  def arguments(self) -> tuple[str, ...]:
    """The names of the int32 arguments: source [B, S], each other one [B]."""
    names = 'source', 'lengths', 'limits'
    drawn = self.options.search == 'sample'
    return (*names, 'numbers') if drawn else names

  def weights(self) -> Weights:
    """Return the parameters as one dictionary of arrays on the host."""
    parameters = jax.device_get(self.run.parameters)
    return traverse_util.flatten_dict(parameters, sep='/')

  def search(
    self,
    weights: Weights,
    source: Int32[Array | np.ndarray, 'B S'],
    lengths: Int32[Array | np.ndarray, ' B'],
    limits: Int32[Array | np.ndarray, ' B'],
    numbers: Int32[Array | np.ndarray, ' B'] | None = None,
  ) -> Hypotheses:
    """Translate a batch."""
    requirements = None
    if self.options.min_length_ratio or self.options.min_length_extra:
      shortest = jnp.minimum(jnp.asarray(self._shortest)[lengths], limits)
      requirements = Requirements(shortest)
    numbers = lengths if numbers is None else numbers
    return search_batch(
      (traverse_util.unflatten_dict(weights, sep='/'),),
      SearchRows((Source(source, lengths),), limits, numbers, requirements),
      models=(self.run.model,),
      settings=self.settings,
      max_length=self.shape.target,
    )

  @property
  def _shortest(self) -> Int32[np.ndarray, ' lengths']:
    """The fewest tokens for every length of a source."""
    counts = [
      shortest_target(length, self.options)
      for length in range(self.shape.source + 1)
    ]
    return np.asarray(counts, np.int32)


def export_program(
  program: SearchProgram, platforms: Sequence[str]
) -> jax.export.Exported:
  """Lower a program for several platforms at once; nothing is compiled."""

  def translate(weights, *rows):
    hypotheses = program.search(weights, *rows)
    return tuple(getattr(hypotheses, name) for name in RESULTS)

  rows, length, _ = program.shape
  shapes = [jax.ShapeDtypeStruct((rows, length), jnp.int32)]
  shapes += [jax.ShapeDtypeStruct((rows,), jnp.int32)] * (
    len(program.arguments) - 1
  )
  lower = jax.export.export(jax.jit(translate), platforms=platforms)
  return lower(jax.eval_shape(program.weights), *shapes)
