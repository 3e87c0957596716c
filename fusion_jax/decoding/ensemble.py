"""Ensembles: several runs that translate together."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32

from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.runs.loading import TrainedModel


@dataclasses.dataclass(frozen=True)
class Mixture:
  """Mixture of the predictions of several models.

  Attributes:
    weights: Weights of the models, of sum 1.
    combine: 'arithmetic' is sum_i w_i p_i, 'geometric' is prod_i p_i^w_i,
      scaled to sum 1.
  """

  weights: tuple[float, ...] = (1.0,)
  combine: Literal['arithmetic', 'geometric'] = 'arithmetic'

  def log_probabilities(
    self, log_p: Sequence[Float32[Array, '*R V']]
  ) -> Float32[Array, '*R V']:
    """Return the logarithm of the mixture."""
    weights = jnp.asarray(self.weights, jnp.float32)
    if self.combine == 'arithmetic':
      weighted = [w + p for w, p in zip(jnp.log(weights), log_p, strict=True)]
      return jax.nn.logsumexp(jnp.stack(weighted), axis=0)
    total = sum(w * p for w, p in zip(weights, log_p, strict=True))
    return jax.nn.log_softmax(total)


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """Runs of one target vocabulary; their source segmentations may differ.

  Attributes:
    runs: Runs; the first one gives languages, options and length limits.
    mixture: Mixture of their predictions.
  """

  runs: tuple[TrainedModel, ...]
  mixture: Mixture = Mixture()

  @property
  def tokenizer(self) -> Tokenizer:
    """Tokenizer of the target side."""
    return self.runs[0].target_tokenizer

  @property
  def longest(self) -> int | None:
    """Largest number of positions of all models; None without a limit."""
    limits = (run.longest for run in self.runs)
    return min((n for n in limits if n is not None), default=None)


def alone(run: TrainedModel | Ensemble) -> Ensemble:
  """Wrap a run as an ensemble of one; return an ensemble unchanged."""
  return run if isinstance(run, Ensemble) else Ensemble((run,))


def make_ensemble(
  runs: Sequence[TrainedModel],
  names: Sequence[str],
  weights: Sequence[float] = (),
  combine: Literal['arithmetic', 'geometric'] = 'arithmetic',
) -> Ensemble:
  """Join runs to an ensemble."""
  first = runs[0]
  for run, name in zip(runs, names, strict=True):
    if run.target_tokenizer.digest != first.target_tokenizer.digest:
      raise InputError(
        f'--workdir: {name} has another target vocabulary than {names[0]}; '
        'runs of an ensemble must share it'
      )
    pair, own = _languages(first), _languages(run)
    if own != pair:
      raise InputError(
        f'--workdir: {name} translates {own}, but {names[0]} {pair}'
      )
  weights = tuple(weights) or (1.0,) * len(runs)
  allowed = all(0 < weight < math.inf for weight in weights)
  if len(weights) != len(runs) or not allowed:
    raise InputError(
      f'--weights: must be {len(runs)} positive numbers, one for each run, got '
      f'{",".join(map(str, weights))}'
    )
  total = sum(weights)
  return Ensemble(
    tuple(runs), Mixture(tuple(w / total for w in weights), combine)
  )


def _languages(run: TrainedModel) -> str:
  data = run.config.data
  return f'{data.source_language} to {data.target_language}'
