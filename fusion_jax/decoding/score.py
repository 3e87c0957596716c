"""Log-probabilities of given translations, from one teacher-forced pass.

Axis letters: B batch, S source, T target, D model width, G groups.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.batches import one_ahead, placed, windows
from fusion_jax.decoding.hypotheses import LengthPenalty
from fusion_jax.decoding.pairs import Pair, PairEncoder, padded_pairs
from fusion_jax.decoding.shapes import (
  PlannedBatch,
  decode_shapes,
  plan_batches,
)
from fusion_jax.fusion.groups import token_mixture
from fusion_jax.models.transformer import (
  ModelOutput,
  OutputLayer,
  Transformer,
  output_logits,
)
from fusion_jax.parallel.mesh import data_mesh, replicated
from fusion_jax.training.trained import Run

# Target positions that have logits at a time.
_CHUNK = 1_024


@dataclasses.dataclass(frozen=True)
class Scored:
  """What a model gives to a translation.

  Attributes:
    tokens: log-probability of every subword, that of the end symbol last.
    divisor: the length penalty.
  """

  tokens: tuple[float, ...]
  divisor: float

  @property
  def log_probability(self) -> float:
    """The sum over the subwords."""
    return math.fsum(self.tokens)

  @property
  def mean(self) -> float:
    """The mean over the subwords; 0 of nothing."""
    return self.log_probability / max(len(self.tokens), 1)

  @property
  def score(self) -> float:
    """The sum divided by the length penalty, as the search ranks."""
    return self.log_probability / self.divisor


_NOTHING = Scored((), 1.0)


class Scorer:
  """Scores pairs of a source and a translation with one run."""

  def __init__(
    self,
    run: Run,
    options: DecodingConfig,
    on_progress: Callable[[int], None] | None = None,
  ):
    """Prepares to score; nothing is compiled yet.

    Args:
      run: the trained model and its tokenizers.
      options: length penalty, longest line and slots of a batch.
      on_progress: is called with the pairs of each finished batch.
    """
    self._run = run
    self._on_progress = on_progress or (lambda pairs: None)
    self._options = dataclasses.replace(options, beam_size=1)
    self._encoder = PairEncoder(run, options)
    self._mesh = data_mesh()
    self._parameters = jax.device_put(run.parameters, replicated(self._mesh))
    self._divisors = LengthPenalty(
      options.length_penalty, options.alpha
    ).divisors(self._encoder.longest)
    self.shapes = decode_shapes(self._options)

  def score(
    self, pairs: Iterable[tuple[str, str]], unit: str = 'line'
  ) -> Iterator[Scored]:
    """Scores every pair, in order.

    Args:
      pairs: source and translation, normalised as the training text was. Two
        empty lines have nothing to score, as in translating.
      unit: what a pair is called in a message.

    Yields:
      One for each pair.

    Raises:
      InputError: a side has more subwords than `max_source_length`.
    """
    numbered = enumerate(pairs, start=1)
    encoded = (
      self._encoder.encode(f'{unit} {number}', *pair)
      for number, pair in numbered
    )
    slots = ((pair, pair.length) for pair in encoded)
    for window in windows(slots, self._options.batch_tokens):
      yield from self._score_window(window)

  def _score_window(self, window: list[Pair]) -> list[Scored]:
    pairs = [pair for pair in window if not pair.is_blank]
    scored = [_NOTHING] * len(pairs)
    batches = plan_batches([pair.length for pair in pairs], self.shapes)
    for batch, found in one_ahead(
      (batch, self._start(batch, pairs)) for batch in batches
    ):
      rows = jax.device_get(found)
      for place, row in zip(batch.sentences, rows, strict=False):
        scored[place] = self._scored(row[: len(pairs[place].target)])
      self._on_progress(len(batch.sentences))
    left = iter(scored)
    return [_NOTHING if pair.is_blank else next(left) for pair in window]

  def _scored(self, tokens: np.ndarray) -> Scored:
    divisor = float(self._divisors[len(tokens)])
    return Scored(tuple(map(float, tokens)), divisor)

  def _start(
    self, batch: PlannedBatch, pairs: list[Pair]
  ) -> Float32[Array, 'B T']:
    """Starts the pass; the array is ready later."""
    chosen = [pairs[sentence] for sentence in batch.sentences]
    end = self._run.target_tokenizer.vocabulary.end
    rows = padded_pairs(chosen, batch.shape, end)
    return _token_scores(
      self._parameters,
      *placed(rows, self._mesh),
      model=self._run.model,
    )


def token_log_probabilities(
  output: ModelOutput,
  targets: Int32[Array, 'B T'],
  combine: Literal['arithmetic', 'geometric'],
) -> Float32[Array, 'B T']:
  """log p of every target token; of groups, that of their mixture.

  Args:
    output: of the teacher-forced pass.
    targets: int32 token ids.
    combine: the mixture of groups: log sum_k psi_k p_k, or
      sum_k psi_k log p_k.

  Returns:
    float32; padding has values too.
  """
  chosen = functools.partial(_chosen, output.output)
  if output.log_weights is None:
    return chosen(output.features, targets)
  each = jax.lax.map(lambda group: chosen(group, targets), output.features)
  return token_mixture(each, output.log_weights, combine)


def _chosen(
  layer: OutputLayer,
  features: Float[Array, 'B T D'],
  targets: Int32[Array, 'B T'],
) -> Float32[Array, 'B T']:
  """Row by row, so that few logits are held."""

  def row(pair):
    logits = output_logits(pair[0], layer)
    here = jnp.take_along_axis(logits, pair[1][:, None], axis=-1)[:, 0]
    return here - jax.nn.logsumexp(logits, axis=-1)

  rows = max(_CHUNK // targets.shape[1], 1)
  return jax.lax.map(row, (features, targets), batch_size=rows)


@functools.partial(jax.jit, static_argnames='model')
def _token_scores(
  parameters,
  source: Int32[Array, 'B S'],
  source_lengths: Int32[Array, ' B'],
  target: Int32[Array, 'B T'],
  *,
  model: Transformer,
) -> Float32[Array, 'B T']:
  output = model.apply({'params': parameters}, source, source_lengths, target)
  combine = model.config.decoder.gtrans.combine
  return token_log_probabilities(output, target, combine)
