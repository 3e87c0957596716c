"""Subword tokenizers: SentencePiece models, trained here or given.

Unigram language models follow Kudo (2018), https://arxiv.org/abs/1804.10959;
byte-pair encoding follows Sennrich et al. (2016),
https://arxiv.org/abs/1508.07909.
"""

import bisect
import copy
import dataclasses
import functools
import hashlib
import io
import itertools
import logging
import math
import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import regex
import sentencepiece
from sentencepiece import sentencepiece_model_pb2, sentencepiece_pb2

from fusion_jax.config import TokenizerConfig
from fusion_jax.errors import InputError
from fusion_jax.files import check_regular, read_errors

logger = logging.getLogger(__name__)

# Control characters end a line for some readers; U+2581 is the character that
# SentencePiece writes for a space.
_SPACES = re.compile(r'[\x00-\x1f\x7f-\x9f\u2581]')
_BYTE_ORDER_MARK = '\ufeff'
# What leaves no trace on paper, by the properties that Unicode gives it.
_INVISIBLE = regex.compile(r'[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}]*')


def normalise(line: str) -> str:
  """Return a line in NFC, without control characters or extra white space.

  Byte order marks are removed. Control characters and U+2581 become spaces,
  runs of white space of any kind one space, and the ends are stripped. A line
  of only invisible characters is empty.
  """
  if not line.isascii():
    line = line.replace(_BYTE_ORDER_MARK, '')
    line = unicodedata.normalize('NFC', line)
  line = ' '.join(_SPACES.sub(' ', line).split())
  return '' if _INVISIBLE.fullmatch(line) else line


def normalised(pair: tuple[str, str]) -> tuple[str, str]:
  return normalise(pair[0]), normalise(pair[1])


# Ids of the symbols in the models trained here.
PADDING, UNKNOWN, START, END = range(4)

# SentencePiece adds up expected counts thread by thread; a fixed number of
# threads keeps the sums, and so the model, the same on every machine.
_TRAINING_THREADS = 8
_ERRORS_ONLY = 2
# Longest line in bytes, SentencePiece's default. It is not passed on, because
# that would change the bytes of the model and so its digest.
_LONGEST_LINE = 4_192
_TOO_LARGE = re.compile(r'Vocabulary size too high.*<= (\d+)', re.DOTALL)
_TOO_SMALL = re.compile(
  r'smaller than required_chars\. \d+ vs (\d+)', re.DOTALL
)


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Size of a vocabulary, and the ids of symbols that a model needs."""

  size: int
  start: int  # What the decoder reads first.
  end: int
  unknown: int


class Tokenizer:
  """SentencePiece model that turns text into ids and back.

  The ids `tags` come before those of every line that is not empty.
  """

  def __init__(self, model: bytes, name: str = 'the tokenizer model'):
    self.model = model
    self.digest = hashlib.sha256(model).hexdigest()
    self.tags: tuple[int, ...] = ()
    self._processor = _load(model, name)
    end, start = self._processor.eos_id(), self._processor.bos_id()
    if end < 0:
      raise InputError(
        f'{name}: has no end symbol; train it with eos_id and bos_id'
      )
    start = start if start >= 0 else end
    size, unknown = self._processor.get_piece_size(), self._processor.unk_id()
    self.vocabulary = Vocabulary(size, start, end, unknown)

  @classmethod
  def from_file(cls, path: str | Path) -> 'Tokenizer':
    check_regular(Path(path))
    with read_errors(path):
      return cls(Path(path).read_bytes(), str(path))

  def tagged(self, pieces: Sequence[str]) -> 'Tokenizer':
    """Return a tokenizer of this model with tags before the ids of a line."""
    tags = []
    for piece in pieces:
      number = self.id_of(piece)
      if number is None:
        raise InputError(
          f'the tag {piece!r} is no piece of the tokenizer; train it with this '
          'control symbol, or change data.source_tag or data.target_tag'
        )
      tags.append(number)
    if not tags and not self.tags:
      return self
    tagged = copy.copy(self)
    tagged.tags = tuple(tags)
    return tagged

  def encode(self, text: str) -> list[int]:
    """Return the ids of a normalised line, without an end symbol."""
    return self._with_tags(self._processor.encode(text, out_type=int))

  def without_tags(self, line: str, where: str) -> str:
    """Return a line without the tags that its user wrote before it."""
    while self.tags and line.startswith(self.known_tags):
      tag = max(filter(line.startswith, self.known_tags), key=len)
      if self.id_of(tag) not in self.tags:
        own = ' '.join(self.pieces(self.tags))
        raise InputError(
          f'{where}: begins with {tag}, and this translates with {own}; leave '
          'it out, or choose another direction or model'
        )
      line = line.removeprefix(tag).lstrip()
    return line

  @functools.cached_property
  def known_tags(self) -> tuple[str, ...]:
    """The tags of all directions that the model knows."""
    special = self.vocabulary.start, self.vocabulary.end, PADDING
    return tuple(
      self._processor.id_to_piece(number)
      for number in range(self.vocabulary.size)
      if self._processor.is_control(number) and number not in special
    )

  def _with_tags(self, ids: list[int]) -> list[int]:
    return [*self.tags, *ids] if self.tags and ids else ids

  def id_of(self, piece: str) -> int | None:
    """Return the id of a piece, or None if there is no such piece."""
    number = self._processor.piece_to_id(piece)
    return number if self._processor.id_to_piece(number) == piece else None

  def pieces(self, ids: Iterable[int] | None = None) -> list[str]:
    """Return the subwords of ids, or all of them; '▁' stands for a space."""
    ids = range(self.vocabulary.size) if ids is None else ids
    return self._processor.id_to_piece(list(ids))

  def surfaces(self, ids: Sequence[int]) -> list[str]:
    """Return the part of the detokenised text that each id stands for."""
    decoded = self._processor.decode(list(ids), out_type='serialized_proto')
    text_proto = sentencepiece_pb2.SentencePieceText.FromString(decoded or b'')
    # What is unknown may be within a word.
    unknown = self.vocabulary.unknown
    return [
      piece.surface.strip() if piece.id == unknown else piece.surface
      for piece in text_proto.pieces
    ]

  @property
  def space_last(self) -> bool:
    """Whether a space is a part of the word before it."""
    return _trainer_spec(self.model).treat_whitespace_as_suffix

  def places(self, text: str) -> list[int | None]:
    """Return the character at which each id of `encode` begins; tags: None."""
    encoded = self._processor.encode(text, out_type='serialized_proto')
    text_proto = sentencepiece_pb2.SentencePieceText.FromString(encoded)
    # SentencePiece counts the bytes of UTF-8.
    raw = text.encode()
    places = [len(raw[: piece.begin].decode()) for piece in text_proto.pieces]
    return [*(None for _ in self.tags), *places] if places else []

  def changes(self, text: str) -> bool:
    """Return whether it cannot write the words of a line as they stand."""
    written = self._processor.normalize(normalise(text)).replace('▁', ' ')
    return written.split() != text.split()

  def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
    """Encode many lines at once; see `encode`."""
    lines = list(lines)
    encoded = self._processor.encode(lines, out_type=int, num_threads=1)
    return list(map(self._with_tags, encoded)) if self.tags else encoded

  def sample(self, text: str, alpha: float, seed: int) -> list[int]:
    """Draw one random segmentation of a line.

    Unigram models: a segmentation x of the line has a probability proportional
    to P(x)^alpha, over all segmentations (Kudo 2018, section 3.2, with l
    unbounded). BPE models: each merge is left out with probability alpha
    (Provilkov et al. 2020, section 3). Others have nothing to draw.
    """
    spec = _trainer_spec(self.model)
    if alpha == 0 or spec.model_type not in (spec.UNIGRAM, spec.BPE):
      return self.encode(text)
    sampler, is_bpe = _sampler(self._processor), spec.model_type == spec.BPE
    return self._with_tags(sampler.sample(text, alpha, seed, is_bpe))

  def decode(self, ids: Iterable[int] | np.ndarray) -> str:
    """Return the text of ids without start, end, padding and tags."""
    ids = [int(number) for number in ids]
    return self._processor.decode(ids) if ids else ''


@functools.lru_cache(8)
def _trainer_spec(model: bytes) -> sentencepiece_model_pb2.TrainerSpec:
  return sentencepiece_model_pb2.ModelProto.FromString(model).trainer_spec


def train(
  lines: Iterable[str], config: TokenizerConfig, tags: Sequence[str] = ()
) -> bytes:
  """Train a SentencePiece model; the same lines give the same model."""
  _silence()
  model, errors = io.BytesIO(), []

  def kept() -> Iterator[str]:
    try:
      yield from lines
    except Exception as error:  # SentencePiece makes another of it.
      errors.append(error)
      raise

  symbols: dict[str, Any] = {'control_symbols': list(tags)} if tags else {}
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=kept(),
      model_writer=model,
      model_type=config.algorithm,
      vocab_size=config.vocabulary_size,
      character_coverage=config.character_coverage,
      byte_fallback=config.byte_fallback,
      normalization_rule_name='identity',
      pad_id=PADDING,
      unk_id=UNKNOWN,
      bos_id=START,
      eos_id=END,
      num_threads=_TRAINING_THREADS,
      minloglevel=_ERRORS_ONLY,
      **symbols,
    )
  except RuntimeError as error:
    known = errors[0] if errors else _explained(str(error), config)
    raise known from None
  return model.getvalue()


def _load(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
  _silence()
  processor = sentencepiece.SentencePieceProcessor()
  try:
    processor.load_from_serialized_proto(model)
    if processor.get_piece_size():
      return processor
  except (RuntimeError, UnicodeDecodeError) as error:
    if 'null character' in str(error):
      raise InputError(
        f'{name}: has a piece with the character U+0000, which SentencePiece '
        'does not read; make it again without'
      ) from None
  raise InputError(f'{name}: not a SentencePiece model')


def _explained(message: str, config: TokenizerConfig) -> InputError:
  size = config.vocabulary_size
  field = 'config.data.tokenizer.vocabulary_size'
  if match := _TOO_LARGE.search(message):
    return InputError(
      f'{field}: {size:,} is too large for this text; the largest '
      f'possible is {int(match[1]):,}'
    )
  if match := _TOO_SMALL.search(message):
    return InputError(
      f'{field}: {size:,} is too small; the characters of this text alone '
      f'need {int(match[1]):,}, or a smaller character_coverage'
    )
  if '!sentences_.empty()' in message:
    return InputError(
      'the training corpora have no text for a tokenizer: every line is empty '
      f'or has more than {_LONGEST_LINE:,} bytes; one sentence a line is '
      'expected'
    )
  return InputError(f'the tokenizer cannot be trained ({message.strip()})')


@functools.cache
def _silence() -> None:
  sentencepiece.set_min_log_level(_ERRORS_ONLY)


def log_unreachable(
  references: Sequence[str], tokenizer: Tokenizer, name: str
) -> None:
  """Say how many references no translation can equal, if any."""
  numbered = enumerate(references, 1)
  changed = [number for number, line in numbered if tokenizer.changes(line)]
  if changed:
    logger.warning(
      '%s: %d of %d lines, line %d first, have characters that the model '
      'normalises; it cannot write these lines as they are',
      name,
      len(changed),
      len(references),
      changed[0],
    )


# How SentencePiece writes a space.
_SPACE = '\u2581'
_WORDS = re.compile(f'{_SPACE}[^{_SPACE}]*|[^{_SPACE}]+')
# SentencePiece's own value: log P of an unknown character is this much below
# that of the least probable piece.
_UNKNOWN_PENALTY = 10.0
# This number of lattices is kept, of words of at most this number of
# characters; about 80 MB.
_CACHED_WORDS = 1 << 15
_CACHED_LENGTH = 16


# Starts of the pieces that may end at one position, and their summed shares.
_Arcs = tuple[list[int], list[float]]


class SubwordSampler:
  """Sampler of segmentations, the same for a seed wherever it runs.

  SentencePiece can sample too, but what it draws for a seed differs from one
  process to the next (observed with 0.2.3), so a resumed run would see other
  data than an uninterrupted one. Here the draws come from Python's generator.
  """

  def __init__(self, processor: sentencepiece.SentencePieceProcessor):
    self._processor = processor
    special = (
      processor.is_control,
      processor.is_unknown,
      processor.is_unused,
      processor.is_byte,
    )
    self._ids = {
      processor.id_to_piece(number): number
      for number in range(processor.get_piece_size())
      if not any(holds(number) for holds in special)
    }
    self._scores = {
      piece: processor.get_score(number) for piece, number in self._ids.items()
    }
    self._longest = max(map(len, self._ids), default=1)
    # If no piece spans a space, the words of a line are independent.
    self._by_word = not any(_SPACE in piece[1:] for piece in self._ids)
    least = min(self._scores.values(), default=0.0)
    self._unknown_score = least - _UNKNOWN_PENALTY
    self._byte_ids = [
      processor.piece_to_id(f'<0x{byte:02X}>') for byte in range(256)
    ]
    self._has_bytes = all(map(processor.is_byte, self._byte_ids))
    self._cached = functools.lru_cache(_CACHED_WORDS)(self._lattice)

  def sample(self, text: str, alpha: float, seed: int, bpe: bool) -> list[int]:
    """Draw a segmentation of a line by a unigram or a BPE model."""
    generator = random.Random(seed)
    text = self._processor.normalize(text)
    words = _WORDS.findall(text) if self._by_word else [text]
    segment = self._merged if bpe else self._path
    pieces = (
      piece for word in words for piece in segment(alpha, word, generator)
    )
    return list(self._with_unknowns(pieces))

  def _path(
    self, alpha: float, word: str, generator: random.Random
  ) -> list[str]:
    """Sample the arcs of a word backward, from the filtering forward."""
    short = len(word) <= _CACHED_LENGTH
    lattice = (self._cached if short else self._lattice)(word, alpha)
    pieces, end = [], len(word)
    while end:
      starts, cumulative = lattice[end]
      drawn = bisect.bisect(cumulative, generator.random())
      start = starts[min(drawn, len(starts) - 1)]
      pieces.append(word[start:end])
      end = start
    return pieces[::-1]

  def _lattice(self, word: str, alpha: float) -> list[_Arcs]:
    """List, for each position, where the piece that ends there may begin."""
    lattice: list[_Arcs] = [([], [])]
    log_totals = [0.0]
    for end in range(1, len(word) + 1):
      starts, weights = [], []
      for start in range(max(0, end - self._longest), end):
        score = self._scores.get(word[start:end])
        if score is None and end - start == 1:
          score = self._unknown_score
        if score is not None:
          starts.append(start)
          weights.append(log_totals[start] + alpha * score)
      largest = max(weights)
      masses = [math.exp(weight - largest) for weight in weights]
      total = math.fsum(masses)
      log_totals.append(largest + math.log(total))
      shares = (mass / total for mass in masses)
      lattice.append((starts, list(itertools.accumulate(shares))))
    return lattice

  def _merged(
    self, alpha: float, word: str, generator: random.Random
  ) -> list[str]:
    """Merge characters, leaving out each possible merge at random."""
    pieces = list(word)
    while True:
      joined = map(''.join, itertools.pairwise(pieces))
      # The score of a BPE piece is its negative rank among the merges.
      merges = [
        (-self._scores[piece], position, piece)
        for position, piece in enumerate(joined)
        if piece in self._scores and generator.random() >= alpha
      ]
      if not merges:
        return pieces
      _, position, piece = min(merges)
      pieces[position : position + 2] = [piece]

  def _with_unknowns(self, pieces: Iterable[str]) -> Iterator[int]:
    """Yield ids; unknown characters give their bytes or one symbol a run."""
    unknown = self._processor.unk_id()
    previous = -1
    for piece in pieces:
      number = self._ids.get(piece, unknown)
      if number == unknown and self._has_bytes:
        yield from (self._byte_ids[byte] for byte in piece.encode())
      elif number != unknown or previous != unknown:
        yield number
      previous = number


@functools.lru_cache(8)
def _sampler(processor: sentencepiece.SentencePieceProcessor) -> SubwordSampler:
  return SubwordSampler(processor)
