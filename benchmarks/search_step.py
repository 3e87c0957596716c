"""The steps of a beam search, compiled and counted."""

import functools

import jax
import jax.numpy as jnp

from benchmarks.fusion_jax_step import random_batches
from benchmarks.sizes import Size
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.search.beam import LengthPenalty, beam_search
from fusion_jax.tools.aot.matmul_flops import product_gflop

_END = 3


class SearchSteps:
  """A search with cached keys and values; the encoder has been run before.

  Attributes:
    gflop: 10^9 floating point operations of the products of all steps.
  """

  def __init__(
    self,
    model: Transformer,
    parameters: Parameters,
    size: Size,
    beam: int,
    steps: int,
  ):
    """Encodes random sentences and compiles the search.

    Args:
      model: the Transformer.
      parameters: fresh ones; hardly any sentence then ends before the limit.
      size: gives the sentences and their length.
      beam: hypotheses of a sentence.
      steps: of the search.
    """
    self._steps = steps
    batch = next(random_batches(size))

    def start(parameters):
      apply = functools.partial(model.apply, {'params': parameters})
      lengths = batch.source_lengths
      encoded = apply(batch.source, lengths, method='encode')
      return apply(encoded, lengths, beam, steps, method='start_decoding')

    def search(parameters, cache, memory):
      apply = functools.partial(model.apply, {'params': parameters})
      return beam_search(
        lambda tokens, position, rows, cache: apply(
          tokens, position, rows, cache, memory, method='decode_step'
        ),
        cache,
        batch=size.rows,
        beam=beam,
        max_length=steps,
        max_lengths=jnp.full(size.rows, steps),
        start_id=model.start_id,
        end_id=_END,
        penalty=LengthPenalty(),
        keep=1,
        normalised=model.gives_log_probabilities,
      )

    self._arguments = jax.jit(start)(parameters)
    traced = jax.jit(search).trace(parameters, *self._arguments)
    self.gflop = product_gflop(traced.jaxpr, trips=steps)
    self._search = traced.lower().compile()

  def run(self, parameters: Parameters) -> None:
    """Searches once.

    Raises:
      RuntimeError: it ended before its last step.
    """
    found = self._search(parameters, *self._arguments)
    if int(found.lengths.max()) != self._steps:
      raise RuntimeError('the search ended before its last step')
