"""Checks that every fusion scheme must pass, for schemes of your own too.

    from fusion_jax.testing import check_scheme

    def test_my_scheme():
      check_scheme('weighted_mean')

Axis letters: B batch, S source, T target, V vocabulary.
"""

import dataclasses
import fnmatch
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from fusion_jax.bounds import choice_fault
from fusion_jax.config import ModelConfig, Side, SideConfig
from fusion_jax.data.batching import Batch
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES
from fusion_jax.fusion.mixture import mixture_log_probabilities
from fusion_jax.fusion.scheme import scheme_of
from fusion_jax.models.transformer import (
  Parameters,
  Transformer,
  initial_parameters,
  output_logits,
  shift_right,
)
from fusion_jax.training.gradients import batch_loss

_VOCABULARY, _START = 11, 2
_ROWS, _SOURCE, _TARGET = 2, 5, 3
_LENGTHS = np.array([5, 3], np.int32)
_TARGET_LENGTHS = np.array([3, 2], np.int32)
_UNIT = float(np.finfo(np.float32).eps)

Ids = Int32[np.ndarray, 'B _']


def check_scheme(name: str, **options: Any) -> None:
  """Check what holds for every scheme, on each side, with pre- and post-norm.

  Log-probabilities are finite and normalised; no position sees a later one, no
  sentence sees padding or another sentence; decoding with a cache gives what
  the full pass gives; gradients reach every parameter but those that the
  scheme declares in `no_gradient`; bfloat16 stays finite and close to float32.

  Args:
    name: Name of a registered scheme.
    **options: Fields of `SideConfig`.

  Raises:
    InputError: There is no such scheme, or it cannot have these options.
    AssertionError: A property does not hold; the message says which.
  """
  if fault := choice_fault(name, SCHEMES):
    raise InputError(f'check_scheme: the scheme {fault}')
  for norm in ('pre', 'post'):
    if norm not in SCHEMES[name].norms:
      continue
    for side in SCHEMES[name].modules:
      sides: dict[str, Any] = {side: SideConfig(fusion=name, **options)}
      fused = FusedModel(dataclasses.replace(TINY, norm=norm, **sides))
      for check in CHECKS:
        try:
          check(fused)
        except AssertionError as error:
          place = f'{name}, {side}, norm={norm!r}: {check.__name__}'
          raise AssertionError(f'{place}: {error}') from error


TINY = ModelConfig(
  width=8,
  filter=12,
  heads=2,
  encoder_layers=3,
  decoder_layers=3,
  norm_epsilon=1e-6,
  dropout=0.1,
  initialization='glorot',
)


def sample_inputs() -> tuple[Ids, Ids]:
  """Return ids of two sources and of their translations."""
  random = np.random.default_rng(0)
  sizes = (_ROWS, _SOURCE), (_ROWS, _TARGET)
  source, target = (
    random.integers(3, _VOCABULARY, size).astype(np.int32) for size in sizes
  )
  return source, target


class FusedModel:
  """A small model with random parameters; its forward pass is compiled once."""

  def __init__(self, config: ModelConfig):
    """Draw the parameters from a normal distribution."""
    self.config = config
    self.model = Transformer(config, _VOCABULARY, _VOCABULARY, _START)
    self.parameters = drawn_parameters(self.model)
    self._forward = jax.jit(self._log_probabilities)

  def forward(
    self, source: Ids, target: Ids, parameters: Parameters | None = None
  ) -> Float32[np.ndarray, 'B T V']:
    """Return the log-probabilities of all subwords at each position."""
    parameters = parameters or self.parameters
    return np.asarray(self._forward(parameters, source, target))

  def _log_probabilities(
    self,
    parameters: Parameters,
    source: Int32[Array, 'B S'],
    target: Int32[Array, 'B T'],
  ) -> Float[Array, 'B T V']:
    batch = _batch(source, target)
    _, output = batch_loss(self.model, parameters, batch, 0.0, 0)
    logits = functools.partial(output_logits, output=output.output)
    width = output.features.shape[-1]
    if output.log_weights is None:
      scores = jax.nn.log_softmax(logits(output.features.reshape(-1, width)))
    else:
      groups = output.features.reshape(len(output.log_weights), -1, width)
      combine = self.config.decoder.combine
      scores = mixture_log_probabilities(
        groups, output.log_weights, logits, combine
      )
    return scores.reshape(*output.features.shape[-3:-1], -1)

  def scaled(self, scale: float) -> Parameters:
    """Return the parameters with embeddings of another scale."""
    table = scale * self.parameters['source_embedding']
    return {**self.parameters, 'source_embedding': table}

  def gradient(self, parameters: Parameters) -> Parameters:
    """Return the gradient of the smoothed loss, with dropout."""
    batch = _batch(*map(jnp.asarray, sample_inputs()))
    key = jax.random.key(0)
    # Not compiled as a whole, which takes longer than all it computes.
    return jax.grad(
      lambda own: batch_loss(self.model, own, batch, 0.1, 0, key)[0].loss
    )(parameters)


def _batch(source: Int32[Array, 'B S'], target: Int32[Array, 'B T']) -> Batch:
  lengths = map(jnp.asarray, (_LENGTHS, _TARGET_LENGTHS))
  return Batch(source, target, *lengths)


def check_probabilities(fused: FusedModel) -> None:
  """Check that the probabilities of all subwords are finite and add up to 1."""
  got = fused.forward(*sample_inputs())
  assert got.shape == (_ROWS, _TARGET, _VOCABULARY)
  assert np.isfinite(got).all(), 'a log-probability is not finite'
  total = np.exp(got).sum(-1)
  if fused.config.decoder.combine == 'arithmetic':
    np.testing.assert_allclose(total, 1, rtol=1e-5)
  else:
    assert (total <= 1 + 1e-5).all()


def check_causality(fused: FusedModel) -> None:
  """Check that a token changes what follows it, and nothing before."""
  source, target = sample_inputs()
  before = fused.forward(source, target)
  changed = target.copy()
  changed[:, 1] = 3 + (changed[:, 1] - 2) % 8
  after = fused.forward(source, changed)
  # Token 1 is the input of position 2.
  assert_close(before[:, :2], after[:, :2])
  assert np.abs(before[:, 2] - after[:, 2]).max() > 1e-5


def check_padding(fused: FusedModel) -> None:
  """Check that padding and the other sentences of a batch change nothing."""
  source, target = sample_inputs()
  before = fused.forward(source, target)
  padded = source.copy()
  padded[1, 3:] = 4
  assert_close(before, fused.forward(padded, target))
  other = source.copy(), target.copy()
  other[0][0], other[1][0] = 5, 6
  assert_close(before[1], fused.forward(*other)[1])


def check_extreme_inputs(fused: FusedModel) -> None:
  """Check that embeddings of 0, of 1e-6 and of 1e3 give finite numbers."""
  for scale in (0.0, 1e-6, 1e3):
    got = fused.forward(*sample_inputs(), parameters=fused.scaled(scale))
    assert np.isfinite(got).all(), f'embeddings times {scale}'


def check_cached_decoding(fused: FusedModel) -> None:
  """Check that decoding step by step gives what the full pass gives."""
  source, target = sample_inputs()
  targets = np.stack([target, target[::-1]])
  full = [fused.forward(source, ids) for ids in targets]
  scores = _decoded(fused, source, targets)
  if not fused.model.gives_log_probabilities:
    scores = jax.nn.log_softmax(scores)
  for hypothesis in range(len(targets)):
    assert_close(scores[:, :, hypothesis].swapaxes(0, 1), full[hypothesis])


def _decoded(
  fused: FusedModel, source: Ids, targets: Int32[np.ndarray, 'K B T']
) -> Float[Array, 'T B K V']:
  """Decode given hypotheses, which change their rows at every position."""
  beam, variables = len(targets), {'params': fused.parameters}

  def compiled(method: str, *static: int) -> Callable[..., Any]:
    apply = functools.partial(fused.model.apply, method=method)
    return jax.jit(apply, static_argnums=static)

  encoded = compiled('encode')(variables, source, _LENGTHS)
  cache, memory = compiled('start_decoding', 3, 4)(
    variables, encoded, _LENGTHS, beam, _TARGET
  )
  step = compiled('decode_step')
  scores = []
  inputs = jnp.stack(
    [shift_right(jnp.asarray(ids), _START) for ids in targets], 1
  )
  for position in range(_TARGET):
    # Each hypothesis takes the next row of the cache at every position.
    order = (np.arange(beam) + position) % beam
    rows = (order[:, None] - np.arange(_TARGET)) % beam
    now, cache = step(
      variables,
      inputs[:, order, position],
      jnp.int32(position),
      jnp.tile(rows.astype(np.int32), (len(inputs), 1, 1)),
      cache,
      memory,
    )
    scores.append(now[:, np.argsort(order)])
  return jnp.stack(scores)


def check_gradients(
  fused: FusedModel,
  has_none: Callable[[ModelConfig, str], bool] = lambda config, name: False,
) -> None:
  """Check that the gradient is finite and reaches every parameter.

  Args:
    has_none: Function that returns whether no gradient can reach a parameter,
      from the configuration and the parameter's name, besides those that the
      schemes declare in `no_gradient`. None reaches the biases of keys, which
      the softmax over keys cancels.
  """
  sides: tuple[Side, ...] = 'encoder', 'decoder'
  rows = [scheme_of(fused.config, side) for side in sides]
  declared = [pattern for row in rows for pattern in row.no_gradient]
  gradient = fused.gradient(fused.parameters)
  for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
    name = '/'.join(part.key for part in path)
    assert np.isfinite(leaf).all(), f'the gradient of {name} is not finite'
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in declared):
      continue
    if not name.endswith('key/bias') and not has_none(fused.config, name):
      assert np.abs(leaf).max() > 0, f'no gradient reaches {name}'


def check_bfloat16(fused: FusedModel) -> None:
  """Check that bfloat16 gives nearly what float32 gives."""
  config = dataclasses.replace(fused.config, compute_dtype='bfloat16')
  close = FusedModel(config).forward(*sample_inputs())
  assert np.isfinite(close).all(), 'bfloat16 is not finite'
  exact = fused.forward(*sample_inputs())
  np.testing.assert_allclose(close, exact, atol=0.25)


CHECKS: tuple[Callable[[FusedModel], None], ...] = (
  check_probabilities,
  check_causality,
  check_padding,
  check_extreme_inputs,
  check_cached_decoding,
  check_gradients,
  check_bfloat16,
)


def drawn_parameters(
  model: Transformer, seed: int = 1, scale: int | float = 0.3
) -> Parameters:
  """Draw parameters from a normal distribution, where no zero hides an error.

  Nothing is compiled, as the initial parameters are, one operation at a time.

  Args:
    scale: Standard deviation.

  Returns:
    Parameters of the shapes of the model.
  """
  generator = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: jnp.asarray(generator.normal(0, scale, x.shape), x.dtype),
    jax.eval_shape(lambda: initial_parameters(model, 0)),
  )


def assert_close(
  ours: Any, theirs: Any, units: int | float = 64, scale: int | float = 1.0
) -> None:
  """Check trees of float32 results of two programs that compute the same.

  Another batch, mesh or processor adds the same terms in another order. What
  that changes is small beside the largest terms, not beside each result: the
  bound of an array is units * eps * max(|theirs|, scale).

  Args:
    theirs: What they should be; a tree of the same structure.
    units: Units in the last place, about ten times what is to be expected: a
      sum of n terms moves by sqrt(n), and so do n layers.
    scale: Size of the terms, where they are larger than their sum.

  Raises:
    AssertionError: A number differs by more.
  """

  def check(x, y):
    largest = np.max(np.abs(y), initial=scale, where=np.isfinite(y))
    np.testing.assert_allclose(x, y, rtol=0, atol=units * _UNIT * largest)

  jax.tree.map(check, ours, theirs)
