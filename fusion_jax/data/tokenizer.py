"""Subword tokenizers: SentencePiece models, trained here or given.

Every line of text is normalised before anything else.

Unigram language models follow Kudo (2018), https://arxiv.org/abs/1804.10959;
byte-pair encoding follows Sennrich et al. (2016),
https://arxiv.org/abs/1508.07909.
"""

import dataclasses
import functools
import hashlib
import io
import logging
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
from fusion_jax.data.sampling import SubwordSampler
from fusion_jax.errors import InputError
from fusion_jax.files import check_regular

# Control characters end a line for some readers; U+2581 is the character that
# SentencePiece writes for a space.
_SPACES = re.compile(r'[\x00-\x1f\x7f-\x9f\u2581]')
_BYTE_ORDER_MARK = '\ufeff'
# What leaves no trace on paper, by the properties that Unicode gives it.
_INVISIBLE = regex.compile(r'[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}]*')


def normalise(line: str) -> str:
  """Return a line in NFC, without control characters or extra white space.

  Byte order marks are removed. Control characters (including the carriage
  return of CRLF) and U+2581, which SentencePiece reads as a space, become
  spaces. Runs of white space of any kind become one space, and the ends are
  stripped. A line of only invisible characters is empty: of Unicode's
  categories C and Z and of its property Default_Ignorable_Code_Point.
  """
  if not line.isascii():
    line = line.replace(_BYTE_ORDER_MARK, '')
    line = unicodedata.normalize('NFC', line)
  line = ' '.join(_SPACES.sub(' ', line).split())
  return '' if _INVISIBLE.fullmatch(line) else line


def normalised(pair: tuple[str, str]) -> tuple[str, str]:
  """Return both lines of a pair normalised."""
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
  """Facts about a tokenizer that a model needs.

  Attributes:
    size: Number of ids, which are 0 .. size - 1.
    start: Id that the decoder reads before the first target subword.
    end: Id after the last subword of a line.
    unknown: Id of text that no piece covers.
  """

  size: int
  start: int
  end: int
  unknown: int


class Tokenizer:
  """SentencePiece model that turns text into ids and back.

  Attributes:
    model: Bytes of the `.model` file.
    digest: SHA-256 of the model, in hexadecimal.
    vocabulary: Size and special symbols.
    tags: Ids put before those of every line that is not empty; see `tagged`.
  """

  def __init__(self, model: bytes, name: str = 'the tokenizer model'):
    """Load a model."""
    self.model = model
    self.digest = hashlib.sha256(model).hexdigest()
    self._processor = _load(model, name)
    end, start = self._processor.eos_id(), self._processor.bos_id()
    if end < 0:
      raise InputError(
        f'{name}: has no end symbol; train it with eos_id and bos_id'
      )
    self.vocabulary = Vocabulary(
      size=self._processor.get_piece_size(),
      start=start if start >= 0 else end,
      end=end,
      unknown=self._processor.unk_id(),
    )
    self.tags: tuple[int, ...] = ()
    self._untagged = self

  @classmethod
  def from_file(cls, path: str | Path) -> 'Tokenizer':
    """Load a `.model` file."""
    check_regular(Path(path))
    try:
      model = Path(path).read_bytes()
    except OSError as error:
      raise InputError(
        f'{path}: the tokenizer model cannot be read: {error.strerror}'
      ) from None
    return cls(model, str(path))

  def __reduce__(self):
    """Pickle the model's bytes, from which worker processes load it again."""
    if self.tags:
      return Tokenizer.tagged, (self._untagged, self.pieces(self.tags))
    return Tokenizer, (self.model,)

  def tagged(self, pieces: Sequence[str]) -> 'Tokenizer':
    """Return this tokenizer with tags before the ids of every line."""
    if not pieces:
      return self._untagged
    tags = []
    for piece in pieces:
      number = self.id_of(piece)
      if number is None:
        raise InputError(
          f'the tag {piece!r} is no piece of the tokenizer; train it with this '
          'control symbol, or change data.source_tag or data.target_tag'
        )
      tags.append(number)
    tagged = self._untagged._shallow_copy()
    tagged.tags = tuple(tags)
    return tagged

  def _shallow_copy(self) -> 'Tokenizer':
    """Return another tokenizer with the same loaded model."""
    other = object.__new__(Tokenizer)
    other.model, other.digest = self.model, self.digest
    other._processor, other.vocabulary = self._processor, self.vocabulary
    other.tags, other._untagged = self.tags, self._untagged
    return other

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

  @property
  def known_tags(self) -> tuple[str, ...]:
    """The tags of all directions that the model knows."""
    return self._untagged._control_symbols

  @functools.cached_property
  def _control_symbols(self) -> tuple[str, ...]:
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
    """Return the part of the detokenised text that each id stands for.

    What is unknown has no spaces around it, because it may be within a word.
    """
    decoded = self._processor.decode(list(ids), out_type='serialized_proto')
    text_proto = sentencepiece_pb2.SentencePieceText.FromString(decoded or b'')
    unknown = self.vocabulary.unknown
    return [
      piece.surface.strip() if piece.id == unknown else piece.surface
      for piece in text_proto.pieces
    ]

  @property
  def space_last(self) -> bool:
    """Whether a space is a part of the word before it."""
    return self._trainer_spec.treat_whitespace_as_suffix

  def places(self, text: str) -> list[int | None]:
    """Return the character of the line at which each id of `encode` begins.

    A space before a word is part of its first subword. The bytes of a
    character begin where the character does. Tags have no place: None.
    """
    encoded = self._processor.encode(text, out_type='serialized_proto')
    text_proto = sentencepiece_pb2.SentencePieceText.FromString(encoded)
    # SentencePiece counts the bytes of UTF-8.
    raw = text.encode()
    places = [len(raw[: piece.begin].decode()) for piece in text_proto.pieces]
    return [*(None for _ in self.tags), *places] if places else []

  def changes(self, text: str) -> bool:
    """Return whether this model, or `normalise`, writes a line differently.

    No translation equals such a line. White space does not count.
    """
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
    unbounded: forward filtering, backward sampling). BPE models: each merge is
    left out with probability alpha (Provilkov et al. 2020, section 3). Word
    and character models have nothing to draw.
    """
    return self._with_tags(self._untagged._drawn(text, alpha, seed))

  def _drawn(self, text: str, alpha: float, seed: int) -> list[int]:
    """Draw a segmentation without tags; see `sample`."""
    if alpha == 0:
      return self.encode(text)
    kinds = self._trainer_spec
    if kinds.model_type == kinds.UNIGRAM:
      return self._sampler.sample_unigram(text, alpha, seed)
    if kinds.model_type == kinds.BPE:
      return self._sampler.sample_bpe(text, alpha, seed)
    return self.encode(text)

  @functools.cached_property
  def _sampler(self) -> SubwordSampler:
    return SubwordSampler(self._processor)

  @functools.cached_property
  def _trainer_spec(self) -> sentencepiece_model_pb2.TrainerSpec:
    model = sentencepiece_model_pb2.ModelProto.FromString(self.model)
    return model.trainer_spec

  def decode(self, ids: Iterable[int] | np.ndarray) -> str:
    """Return the text of ids without start, end, padding and tags."""
    ids = [int(number) for number in ids]
    return self._processor.decode(ids) if ids else ''


def train(
  lines: Iterable[str], config: TokenizerConfig, tags: Sequence[str] = ()
) -> bytes:
  """Train a SentencePiece model; the same lines give the same model."""
  _silence()
  source = _Lines(lines)
  model = io.BytesIO()
  symbols: dict[str, Any] = {'control_symbols': list(tags)} if tags else {}
  try:
    sentencepiece.SentencePieceTrainer.train(
      sentence_iterator=iter(source),
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
    if source.error is not None:
      raise source.error from None
    raise _explained(str(error), config) from error
  return model.getvalue()


class _Lines:
  """Lines that keep the error which ends them; SentencePiece wraps it."""

  def __init__(self, lines: Iterable[str]):
    self._lines = lines
    self.error: Exception | None = None

  def __iter__(self) -> Iterator[str]:
    try:
      yield from self._lines
    except Exception as error:
      self.error = error
      raise


def _load(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
  _silence()
  processor = sentencepiece.SentencePieceProcessor()
  try:
    processor.load_from_serialized_proto(model)
    pieces = processor.get_piece_size()
  except RuntimeError as error:
    if 'null character' in str(error):
      raise InputError(
        f'{name}: has a piece with the character U+0000, which SentencePiece '
        'does not read; make it again without'
      ) from None
    pieces = 0
  except UnicodeDecodeError:
    pieces = 0
  if pieces == 0:
    raise InputError(f'{name}: not a SentencePiece model')
  return processor


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


logger = logging.getLogger(__name__)


def log_unreachable(
  references: Sequence[str], tokenizer: Tokenizer, name: str
) -> None:
  """Say how many references no translation can equal, if any."""
  changed = [
    n for n, line in enumerate(references, 1) if tokenizer.changes(line)
  ]
  if changed:
    logger.warning(
      '%s: %d of %d lines, line %d first, have characters that the model '
      'normalises; it cannot write these lines as they are',
      name,
      len(changed),
      len(references),
      changed[0],
    )
