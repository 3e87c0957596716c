"""Lines of text in, their translations out, in the same order.

A window of lines is encoded, put into batches of similar length, searched and
put back into order; the window bounds what is held in memory.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Int32

from fusion_jax.config import DecodingConfig
from fusion_jax.data.normalise import normalise
from fusion_jax.decoding.batches import one_ahead, padded, placed, windows
from fusion_jax.decoding.compiled import (
  SearchRows,
  Source,
  search_batch,
  search_settings,
)
from fusion_jax.decoding.ensemble import Ensemble, alone
from fusion_jax.decoding.hypotheses import Hypotheses
from fusion_jax.decoding.pairs import Pair
from fusion_jax.decoding.pieces import joiner, split_line
from fusion_jax.decoding.shapes import (
  PlannedBatch,
  decode_shapes,
  plan_batches,
  shortest_target,
  target_limit,
)
from fusion_jax.errors import InputError
from fusion_jax.parallel.mesh import data_mesh, replicated
from fusion_jax.training.trained import Run


@dataclasses.dataclass(frozen=True)
class Translation:
  """One translation of a line.

  Attributes:
    text: detokenised, on one line.
    score: the log-probability divided by the length penalty; of a line
      translated in pieces the sum over them.
    log_probability: the sum over all subwords, end symbols included.
    pairs: the ids of every piece of the line and of its translation, as the
      first model reads them; none of an empty line.
  """

  text: str
  score: float
  log_probability: float
  pairs: tuple[Pair, ...] = ()


_EMPTY = Translation('', 0.0, 0.0)

# A piece of a line as every model reads it.
_Piece = tuple[list[int], ...]


def _slots(piece: _Piece) -> int:
  return max(map(len, piece))


class Translator:
  """Translates with a run, or with several as one."""

  def __init__(
    self,
    run: Run | Ensemble,
    options: DecodingConfig,
    n_best: int = 1,
    on_progress: Callable[[int], None] | None = None,
  ):
    """Prepares to translate; nothing is compiled yet.

    Args:
      run: one or more trained models and their tokenizers.
      options: of the search and the batches.
      n_best: translations of each line.
      on_progress: is called with the sentences of each finished batch.

    Raises:
      InputError: n_best is not between 1 and the beam size.
    """
    if options.search == 'sample':
      options = dataclasses.replace(options, beam_size=max(n_best, 1))
    if not 1 <= n_best <= options.beam_size:
      raise InputError(
        f'n_best must be between 1 and the beam size {options.beam_size}, '
        f'got {n_best}'
      )
    self._ensemble = ensemble = alone(run)
    self._longest = ensemble.longest
    self._options = options
    self._on_progress = on_progress or (lambda sentences: None)
    self._joiner = joiner(ensemble.runs[0].config.data.target_language)
    self._mesh = data_mesh()
    self._parameters = jax.device_put(
      tuple(each.parameters for each in ensemble.runs), replicated(self._mesh)
    )
    self._search = search_settings(options, ensemble, n_best)
    self._shortest = options.min_length_ratio or options.min_length_extra
    self.shapes = decode_shapes(options, self._longest)

  def translate(self, lines: Iterable[str]) -> Iterator[str]:
    """The best translation of every line, in order.

    An empty line gives an empty line. A line of more than
    `max_source_length` subwords is translated in pieces.

    Args:
      lines: text; it is normalised as the training text was.

    Yields:
      One line for each.
    """
    for translations in self.translate_n_best(lines):
      yield translations[0].text

  def translate_n_best(
    self, lines: Iterable[str]
  ) -> Iterator[list[Translation]]:
    """The n best translations of every line, best first, in order.

    There are fewer than n only where fewer are possible within the length
    limit. The k-th best of a line translated in pieces is made of the k-th
    best of every piece.

    Args:
      lines: as for `translate`.

    Yields:
      At least one translation for each line.
    """
    beam = self._options.beam_size
    encoded = map(self._encode, lines)
    slots = ((pieces, beam * sum(map(_slots, pieces))) for pieces in encoded)
    first = 0
    for window in windows(slots, self._options.batch_tokens):
      sources = list(itertools.chain.from_iterable(window))
      translated = iter(self._translate_sources(sources, first))
      first += len(sources)
      for pieces in window:
        yield self._join(list(itertools.islice(translated, len(pieces))))

  def _encode(self, line: str) -> list[_Piece]:
    """The ids of every piece of a line; none for an empty line."""
    room = self._options.max_source_length - 1
    tokenizers = [run.source_tokenizer for run in self._ensemble.runs]
    pieces = split_line(
      normalise(line),
      lambda piece: all(len(t.encode(piece)) <= room for t in tokenizers),
    )
    return [
      tuple(
        [*tokenizer.encode(piece)[:room], tokenizer.vocabulary.end]
        for tokenizer in tokenizers
      )
      for piece in pieces
    ]

  def _translate_sources(
    self, sources: list[_Piece], first: int
  ) -> list[list[Translation]]:
    """Translations of sources that have the numbers first, first + 1, ..."""
    translations: list[list[Translation]] = [[] for _ in sources]
    batches = plan_batches(list(map(_slots, sources)), self.shapes)
    for batch, hypotheses in one_ahead(
      (batch, self._start(batch, sources, first)) for batch in batches
    ):
      read = [sources[sentence][0] for sentence in batch.sentences]
      texts = self._texts(hypotheses, read)
      for sentence, found in zip(batch.sentences, texts, strict=True):
        translations[sentence] = found
      self._on_progress(len(batch.sentences))
    return translations

  def _start(
    self, batch: PlannedBatch, sources: Sequence[_Piece], first: int
  ) -> Hypotheses:
    """Starts the search; the arrays are ready later."""
    chosen = [sources[sentence] for sentence in batch.sentences]
    shape = batch.shape
    read = tuple(
      Source(*padded(list(ids), shape.rows, shape.source, self._search.end_id))
      for ids in zip(*chosen, strict=True)
    )
    # The first run's count of subwords decides the limits.
    own = [len(piece[0]) for piece in chosen]
    limits = [target_limit(n, self._options, self._longest) for n in own]
    shortest = None
    if self._shortest:
      shortest = [shortest_target(n, self._options) for n in own]
      shortest = _filled(map(min, shortest, limits), shape.rows, 1)
    numbers = (first + sentence for sentence in batch.sentences)
    rows = SearchRows(
      read,
      _filled(limits, shape.rows, 1),
      _filled(numbers, shape.rows, 0),
      shortest,
    )
    return search_batch(
      self._parameters,
      placed(rows, self._mesh),
      models=tuple(run.model for run in self._ensemble.runs),
      settings=self._search,
      max_length=shape.target,
    )

  def _texts(
    self, hypotheses: Hypotheses, sources: list[list[int]]
  ) -> list[list[Translation]]:
    hypotheses = jax.device_get(hypotheses)
    return [
      [
        Translation(
          self._decode(hypotheses.tokens[row, k, : length - 1]),
          float(hypotheses.scores[row, k]),
          float(hypotheses.log_probabilities[row, k]),
          (Pair(source, hypotheses.tokens[row, k, :length].tolist()),),
        )
        for k, length in enumerate(hypotheses.lengths[row])
        if length > 0
      ]
      or [_EMPTY]
      for row, source in enumerate(sources)
    ]

  def _decode(self, ids: np.ndarray) -> str:
    text = self._ensemble.tokenizer.decode(ids)
    # Byte pieces can spell any character; a line must stay one line.
    return ' '.join(text.splitlines())

  def _join(self, pieces: list[list[Translation]]) -> list[Translation]:
    if not pieces:
      return [_EMPTY]
    return [
      Translation(
        self._joiner.join(piece.text for piece in ranked),
        sum(piece.score for piece in ranked),
        sum(piece.log_probability for piece in ranked),
        tuple(pair for piece in ranked for pair in piece.pairs),
      )
      for ranked in zip(*pieces, strict=False)
    ]


def _filled(
  values: Iterable[int], rows: int, spare: int
) -> Int32[np.ndarray, ' {rows}']:
  """One value a row; spare rows have another."""
  filled = np.full(rows, spare, np.int32)
  own = list(values)
  filled[: len(own)] = own
  return filled
