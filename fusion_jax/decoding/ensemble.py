"""Several runs that translate as one."""

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
  """How the predictions of models become one.

  Attributes:
    weights: of the models, of sum 1.
    combine: 'arithmetic': sum_i w_i p_i. 'geometric': prod_i p_i^w_i, scaled
      to sum 1.
  """

  weights: tuple[float, ...] = (1.0,)
  combine: Literal['arithmetic', 'geometric'] = 'arithmetic'

  def log_probabilities(
    self, log_p: Sequence[Float32[Array, '*R V']]
  ) -> Float32[Array, '*R V']:
    """The logarithm of the mixture.

    Args:
      log_p: of each model.

    Returns:
      float32, normalised.
    """
    weights = jnp.asarray(self.weights, jnp.float32)
    if self.combine == 'arithmetic':
      weighted = [w + p for w, p in zip(jnp.log(weights), log_p, strict=True)]
      return jax.nn.logsumexp(jnp.stack(weighted), axis=0)
    total = sum(w * p for w, p in zip(weights, log_p, strict=True))
    return jax.nn.log_softmax(total)


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """Runs of one target vocabulary; their sources may be cut differently.

  Attributes:
    runs: the first one gives languages, options and length limits.
    mixture: of their predictions.
  """

  runs: tuple[TrainedModel, ...]
  mixture: Mixture = Mixture()

  @property
  def tokenizer(self) -> Tokenizer:
    """Of the target side."""
    return self.runs[0].target_tokenizer

  @property
  def longest(self) -> int | None:
    """The most positions that all models have, if any has a limit."""
    limits = (run.longest for run in self.runs)
    return min((n for n in limits if n is not None), default=None)


def alone(run: TrainedModel | Ensemble) -> Ensemble:
  """A run as an ensemble of one."""
  return run if isinstance(run, Ensemble) else Ensemble((run,))


def make_ensemble(
  runs: Sequence[TrainedModel],
  names: Sequence[str],
  weights: Sequence[float] = (),
  combine: Literal['arithmetic', 'geometric'] = 'arithmetic',
) -> Ensemble:
  """Joins runs.

  Args:
    runs: at least one.
    names: of the runs, for messages.
    weights: positive, in any scale; none: all alike.
    combine: the mean of the predictions.

  Returns:
    The ensemble.

  Raises:
    InputError: the target vocabularies or languages differ, or the weights
      are not as many as the runs or not positive.
  """
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
