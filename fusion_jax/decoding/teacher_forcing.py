"""Log-probabilities of given tokens, from one teacher-forced pass.

Axis letters: B batch, S source, T target, D model width, V vocabulary.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from fusion_jax.decoding.coverage import coverage, mean_attention
from fusion_jax.decoding.ensemble import Mixture
from fusion_jax.decoding.model_step import Source
from fusion_jax.fusion.gtrans import (
  at_positions,
  mixture_log_probabilities,
  token_mixture,
)
from fusion_jax.layers.sow import cross_attention_weights
from fusion_jax.models.transformer import (
  ModelOutput,
  OutputLayer,
  Parameters,
  Transformer,
  output_logits,
)
from fusion_jax.parallel.mesh import over_rows

# Number of target positions whose logits are held at a time.
_CHUNK = 1_024

Combine = Literal['arithmetic', 'geometric']


class TeacherForcedRows(NamedTuple):
  """Batch of pairs.

  Attributes:
    sources: Source sentences for each model.
    target: Token ids, the end symbols included.
    target_lengths: Number of tokens in each row.
  """

  sources: tuple[Source, ...]
  target: Int32[Array | np.ndarray, 'B T']
  target_lengths: Int32[Array | np.ndarray, ' B']


@functools.partial(jax.jit, static_argnames=('models', 'mixture', 'weight'))
@over_rows
def teacher_forced_scores(
  parameters: tuple[Parameters, ...],
  rows: TeacherForcedRows,
  *,
  models: tuple[Transformer, ...],
  mixture: Mixture,
  weight: float = 0.0,
) -> tuple[Float32[Array, 'B T'], Float32[Array, ' B']]:
  """Score targets with one or more models."""
  tokens = jnp.arange(rows.target.shape[1]) < rows.target_lengths[:, None]
  outputs, coverage_score = [], jnp.zeros(rows.target.shape[0])
  for model, own, source, share in zip(
    models, parameters, rows.sources, mixture.weights, strict=True
  ):
    output, kept = model.apply(
      {'params': own},
      *(source.ids, source.lengths, rows.target),
      mutable=['attention'] if weight else [],
    )
    outputs.append(output)
    if weight:
      attention = mean_attention(cross_attention_weights(kept['attention']))
      attended = jnp.where(tokens[..., None], attention, 0).sum(1)
      coverage_score += weight * share * coverage(attended, source.tokens)
  target = jnp.asarray(rows.target)
  combines = [model.config.decoder.combine for model in models]
  if len(models) == 1:
    found = token_log_probabilities(outputs[0], target, combines[0])
  else:
    found = ensemble_log_probabilities(outputs, target, combines, mixture)
  return found, coverage_score


def token_log_probabilities(
  output: ModelOutput, targets: Int32[Array, 'B T'], combine: Combine
) -> Float32[Array, 'B T']:
  """Return log p of every target token, of the mixture if there are groups."""
  log_p = functools.partial(_log_softmax, output=output.output)
  if output.log_weights is None:
    return _chosen(log_p, output.features, targets)
  each = jax.lax.map(
    lambda group: _chosen(log_p, group, targets), output.features
  )
  return token_mixture(each, output.log_weights, combine)


def ensemble_log_probabilities(
  outputs: Sequence[ModelOutput],
  targets: Int32[Array, 'B T'],
  combines: Sequence[Combine],
  mixture: Mixture,
) -> Float32[Array, 'B T']:
  """Return log p of every target token in the mixture of several models."""

  def log_p(features: Any) -> Float32[Array, 'T V']:
    return mixture.log_probabilities(
      [
        _all_log_probabilities(own[0], own[1], output.output, combine)
        for own, output, combine in zip(
          features, outputs, combines, strict=True
        )
      ]
    )

  return _chosen(log_p, tuple(map(_by_row, outputs)), targets)


def _by_row(
  output: ModelOutput,
) -> tuple[Float[Array, 'B *G T D'], Float[Array, 'B G T'] | None]:
  """Return features and log psi with the rows first, to take one by one."""
  if output.log_weights is None:
    return output.features, None
  features = jnp.moveaxis(output.features, 0, 1)
  weights = at_positions(output.log_weights, output.features.shape[1:3])
  return features, jnp.moveaxis(weights, 0, 1)


def _chosen(
  log_p: Callable,
  features: Any,
  targets: Int32[Array, 'B T'],
) -> Float32[Array, 'B T']:
  """Choose log p of the targets row by row, so that few logits are held."""

  def row(pair):
    every = log_p(pair[0])
    return jnp.take_along_axis(every, pair[1][:, None], axis=-1)[:, 0]

  rows = max(_CHUNK // targets.shape[1], 1)
  return jax.lax.map(row, (features, targets), batch_size=rows)


def _log_softmax(
  features: Float[Array, 'T D'], output: OutputLayer
) -> Float32[Array, 'T V']:
  return jax.nn.log_softmax(output_logits(features, output))


def _all_log_probabilities(
  features: Float[Array, '*G T D'],
  log_weights: Float[Array, 'G T'] | None,
  output: OutputLayer,
  combine: Combine,
) -> Float32[Array, 'T V']:
  """Return all log-probabilities of one row in one model."""
  if log_weights is None:
    return _log_softmax(features, output)
  logits = functools.partial(output_logits, output=output)
  return mixture_log_probabilities(features, log_weights, logits, combine)
