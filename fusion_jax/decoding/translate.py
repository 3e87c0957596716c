"""Translation of lines of text, in the same order.

A window of lines is encoded, put into batches of similar length, searched and
put back into order. The window bounds what is held in memory.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import numpy as np

from fusion_jax.config import DecodingConfig
from fusion_jax.data.batching import Shape
from fusion_jax.decoding.batches import (
  PairIds,
  PlannedBatch,
  computed,
  decode_shapes,
  on_mesh,
  pad_values,
  padded,
  shortest_target,
  target_limit,
  windows,
)
from fusion_jax.decoding.ensemble import Ensemble, alone
from fusion_jax.decoding.model_step import (
  SearchRows,
  Source,
  search_batch,
  search_settings,
)
from fusion_jax.decoding.sentences import Sentence, SentenceEncoder
from fusion_jax.errors import InputError
from fusion_jax.parallel.mesh import data_mesh
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.search.constraints import Requirements
from fusion_jax.search.hypotheses import Hypotheses


@dataclasses.dataclass(frozen=True)
class Translation:
  """One translation of a line.

  Attributes:
    text: Detokenised text, on one line.
    score: Log-probability divided by the length penalty; for a line translated
      in pieces, the sum over the pieces.
    log_probability: Sum over all subwords, end symbols included.
    pairs: Ids of every piece of the line and of its translation, as the first
      model reads them; empty for an empty line.
    token_log_probabilities: Log-probability of every subword of the
      translations in `pairs`, as found step by step in the search.
    subwords: These subwords; '▁' stands for a space.
  """

  text: str
  score: float
  log_probability: float
  pairs: tuple[PairIds, ...] = ()
  token_log_probabilities: tuple[float, ...] = ()
  subwords: tuple[str, ...] = ()


_EMPTY = Translation('', 0.0, 0.0)


class Translator:
  """Translator with a run, or with several as an ensemble."""

  def __init__(
    self,
    run: TrainedModel | Ensemble,
    options: DecodingConfig,
    n_best: int = 1,
    on_progress: Callable[[int], None] | None = None,
    *,
    at_once: bool = False,
    devices: int | None = None,
  ):
    """Prepare to translate; nothing is compiled yet."""
    self._ensemble = ensemble = alone(run)
    if options.search == 'sample':
      options = dataclasses.replace(options, beam_size=max(n_best, 1))
    if not 1 <= n_best <= options.beam_size:
      raise InputError(
        f'n_best must be between 1 and the beam size {options.beam_size}, '
        f'got {n_best}'
      )
    self._encoder = SentenceEncoder(ensemble, options)
    self._options = options
    self._on_progress = on_progress or (lambda lines: None)
    self._at_once = at_once
    self._search = dataclasses.replace(
      search_settings(options, ensemble, n_best), compacts=True
    )
    self._pass = on_mesh(
      search_batch,
      tuple(run.parameters for run in ensemble.runs),
      data_mesh(None if devices is None else jax.local_devices()[:devices]),
      models=tuple(run.model for run in ensemble.runs),
      settings=self._search,
    )
    self._shortest = options.min_length_ratio or options.min_length_extra
    self.shapes = decode_shapes(options, ensemble.longest)

  def translate(self, lines: Iterable[str]) -> Iterator[str]:
    """Yield the best translation of every line, in order.

    An empty line gives an empty line. A line of more than
    `max_source_length` subwords is translated in pieces.
    """
    for translations in self.translate_n_best(lines):
      yield translations[0].text

  def translate_n_best(
    self, lines: Iterable[str], prefixes: Iterable[str] = itertools.repeat('')
  ) -> Iterator[list[Translation]]:
    """Yield the n best translations of every line, best first, in order.

    There are fewer than n only where fewer are possible within the length
    limit. For a line translated in pieces, the k-th best translation joins the
    k-th best of every piece.
    """
    encoded = map(self._encoder.encode, itertools.count(1), lines, prefixes)
    beam = self._options.beam_size
    slots = (
      (line, beam * sum(piece.length for piece in line)) for line in encoded
    )
    window_slots = self._options.batch_tokens * jax.process_count()
    first = 0
    for window in windows(slots, 0 if self._at_once else window_slots):
      translated = iter(self._translate_window(window, first))
      first += sum(map(len, window))
      for pieces in window:
        yield self._join(list(itertools.islice(translated, len(pieces))))

  def warm_up(self) -> Iterator[tuple[Shape, float]]:
    """Compile every shape, in its program without prefixes.

    Windows with a prefix have programs of their own, compiled at first use.
    """
    end = self._search.end_id
    sentence = Sentence(tuple([end] for _ in self._ensemble.runs))
    for shape in self.shapes:
      begin = time.perf_counter()
      started = self._start(PlannedBatch(shape, [0]), [sentence], 0, False)
      jax.block_until_ready(started)
      yield shape, time.perf_counter() - begin

  def check(self, number: int, line: str, prefix: str = '') -> None:
    """Refuse a line, by its number, that cannot be translated."""
    self._encoder.check(number, line, prefix)

  def _translate_window(
    self, window: list[list[Sentence]], first: int
  ) -> list[list[Translation]]:
    """Translate the pieces of lines, numbered first, first + 1, ...

    Several processes translate a share each, and all get the whole result.
    """
    sources = list(itertools.chain.from_iterable(window))
    # A line counts as translated with its first piece.
    firsts = set(itertools.accumulate(map(len, window), initial=0))
    # Taken over all sources, so that every process starts the same program.
    prefixed = any(sentence.prefix for sentence in sources)
    translations = computed(
      [sentence.length for sentence in sources],
      self.shapes,
      lambda batch: self._start(batch, sources, first, prefixed),
      lambda place, row: self._texts(row, sources[place].sources[0]),
      lambda places: self._on_progress(len(firsts.intersection(places))),
      shared=list[Translation],
    )
    self._on_progress(sum(not pieces for pieces in window))
    return translations

  def _start(
    self,
    batch: PlannedBatch,
    sources: Sequence[Sentence],
    first: int,
    prefixed: bool,
  ) -> Hypotheses:
    """Start the search; the arrays are ready later."""
    chosen = [sources[sentence] for sentence in batch.sentences]
    shape = batch.shape
    read = (
      [sentence.sources[run] for sentence in chosen]
      for run in range(len(self._ensemble.runs))
    )
    size = shape.rows, shape.source
    rows = SearchRows(
      tuple(Source(*padded(ids, *size, self._search.end_id)) for ids in read),
      pad_values(map(self._limit, chosen), shape.rows, 1),
      pad_values((first + n for n in batch.sentences), shape.rows, 0),
      self._requirements(chosen, shape, prefixed),
    )
    return self._pass(rows, max_length=shape.target)

  def _limit(self, sentence: Sentence) -> int:
    """Return the length limit, from the subwords of the first run."""
    length, longest = len(sentence.sources[0]), self._ensemble.longest
    return target_limit(length, self._options, longest)

  def _requirements(
    self, sentences: Sequence[Sentence], shape: Shape, prefixed: bool
  ) -> Requirements | None:
    """Return the requirements; None selects a program without any."""
    if not (self._shortest or prefixed):
      return None
    shortest = (
      min(shortest_target(len(s.sources[0]), self._options), self._limit(s))
      for s in sentences
    )
    least = pad_values(shortest, shape.rows, 1)
    if not prefixed:
      return Requirements(least)
    prefixes = np.zeros((shape.rows, shape.target), np.int32)
    for row, sentence in enumerate(sentences):
      prefixes[row, : len(sentence.prefix)] = sentence.prefix
    lengths = pad_values((len(s.prefix) for s in sentences), shape.rows, 0)
    return Requirements(least, prefixes, lengths)

  def _texts(self, row: Hypotheses, source: list[int]) -> list[Translation]:
    translations, tokenizer = [], self._ensemble.tokenizer
    for tokens, length, score, log_probability, log_p in zip(*row, strict=True):
      if length > 0:
        ids = tokens[:length].tolist()
        translations.append(
          Translation(
            # Byte pieces can spell any character; a line must stay one line.
            ' '.join(tokenizer.decode(ids[:-1]).splitlines()),
            float(score),
            float(log_probability),
            (PairIds(source, ids),),
            tuple(log_p[:length].tolist()),
            tuple(tokenizer.pieces(ids)),
          )
        )
    return translations or [_EMPTY]

  def _join(self, pieces: list[list[Translation]]) -> list[Translation]:
    if not pieces:
      return [_EMPTY]
    between = self._ensemble.runs[0].target_words.between
    return [
      Translation(
        between.join(piece.text for piece in ranked),
        sum(piece.score for piece in ranked),
        sum(piece.log_probability for piece in ranked),
        tuple(pair for piece in ranked for pair in piece.pairs),
        tuple(p for piece in ranked for p in piece.token_log_probabilities),
        tuple(x for piece in ranked for x in piece.subwords),
      )
      for ranked in zip(*pieces, strict=False)
    ]
