"""SentencePiece models whose ids are those of a foreign vocabulary.

A foreign program cuts a line into pieces with a SentencePiece model, and looks
up the id of each piece in a vocabulary of its own. Here one SentencePiece model
does both: its pieces stand in the order of the vocabulary, with the scores and
the normaliser of the original. Pieces that the original model lacks are never
found in a text, but are decoded. The exception is a single character that the
original model does not know: the foreign program looks it up as it stands, and
so finds it where only the other side has it. (Of two such characters in a row
it makes one unknown token, and here each is found.)

Pieces of the original model that the vocabulary lacks are the unknown token to
the foreign program. They are put after the vocabulary, so that lines are cut as
before; their rows in the tables of the model are those of the unknown token.

Axis letters: V vocabulary, D model width.
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError

_Piece = ModelProto.SentencePiece

# What the logit of a piece after the vocabulary is below that of the unknown
# token. Its probability is below the rounding of float32, and label smoothing
# does not suffer.
_NEVER = -30.0

# Largest number of pieces in a message.
_NAMED = 5


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Vocabulary of a foreign program: its pieces in the order of their ids."""

  name: str  # Of its file, for messages.
  pieces: Sequence[str]
  start: str  # What the decoder reads first.
  end: str
  unknown: str
  symbols: Sequence[str] = ()  # Further pieces that stand for no text.

  def check(self) -> None:
    """Refuse a vocabulary without its symbols, or with a piece twice."""
    for piece in (self.start, self.end, self.unknown):
      if piece not in self.pieces:
        raise InputError(f'{self.name}: lacks the piece {piece!r}')
    piece, count = Counter(self.pieces).most_common(1)[0]
    if count > 1:
      raise InputError(f'{self.name}: has the piece {piece!r} twice')
    if '' in self.pieces:
      raise InputError(f'{self.name}: has an empty piece')


class Added(NamedTuple):
  """Pieces after the V of a vocabulary, and the id of the unknown token."""

  unknown: int
  before: int
  after: int

  def rows(self, table: np.ndarray) -> np.ndarray:
    """Return a table [V, D] with a row for each piece that was added."""
    if table.shape[:1] != (self.before,):
      return table
    rows = np.repeat(table[[self.unknown]], self.after - self.before, 0)
    return np.concatenate([table, rows])

  def bias(self, bias: np.ndarray) -> np.ndarray:
    """Return a bias [V] or [1, V] by which what was added is never chosen."""
    longer = self.rows(bias.reshape(-1))
    return longer + _NEVER * (np.arange(len(longer)) >= self.before)


class Sides(NamedTuple):
  """Tokenizers of both sides, what they have more, and what to say of it."""

  tokenizers: tuple[Tokenizer, Tokenizer]
  source: Added
  target: Added
  notes: Sequence[str]

  def grown(self, path: str, table: np.ndarray) -> np.ndarray:
    """Return a parameter with what its vocabulary has more, if it has one."""
    if path == 'source_embedding':
      return self.source.rows(table)
    if path in ('target_embedding', 'output_table'):
      return self.target.rows(table)
    return self.target.bias(table) if path == 'output_bias' else table


def read_sides(
  models: Sequence[Path], vocabularies: tuple[Vocabulary, Vocabulary]
) -> Sides:
  """Rebuild the SentencePiece models of both sides for their vocabularies."""
  first, last = vocabularies
  if list(first.pieces) == list(last.pieces):
    source, target = rebuilt_tokenizers(models, first)
  else:
    (source,) = rebuilt_tokenizers(models[:1], first)
    (target,) = rebuilt_tokenizers(models[1:], last)
  notes = map(_unknown_pieces, models, vocabularies, (source, target))
  return Sides(
    (source, target),
    _added(first, source),
    _added(last, target),
    list(dict.fromkeys(filter(None, notes))),
  )


def _added(vocabulary: Vocabulary, tokenizer: Tokenizer) -> Added:
  unknown = vocabulary.pieces.index(vocabulary.unknown)
  return Added(unknown, len(vocabulary.pieces), tokenizer.vocabulary.size)


def _unknown_pieces(
  path: Path, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> str:
  """Say which pieces a model cuts that its vocabulary lacks."""
  pieces = ModelProto.FromString(tokenizer.model).pieces
  added = pieces[len(vocabulary.pieces) :]
  cut = [p for p in added if p.type in (_Piece.NORMAL, _Piece.USER_DEFINED)]
  if not cut:
    return ''
  # The score is the logarithm of a probability, or minus the rank of a merge.
  cut.sort(key=lambda piece: -piece.score)
  named = ', '.join(repr(piece.piece) for piece in cut[:_NAMED])
  return (
    f'{vocabulary.name}: lacks {len(cut):,} pieces that {path.name} cuts, '
    f'which the model reads as {vocabulary.unknown}; the most frequent: {named}'
  )


def rebuilt_tokenizers(
  models: Sequence[Path], vocabulary: Vocabulary
) -> tuple[Tokenizer, ...]:
  """Return tokenizers that cut lines as models do, with a vocabulary's ids."""
  vocabulary.check()
  originals = {path: _read(path) for path in models}
  known = set(vocabulary.pieces)
  pieces = dict.fromkeys(vocabulary.pieces)
  for path, original in originals.items():
    text = _of_text(original)
    if known.isdisjoint(text):
      raise InputError(
        f'{vocabulary.name}: has no piece of {path.name}; give the vocabulary '
        'of this model'
      )
    pieces |= dict.fromkeys(text)
  return tuple(_rebuilt(originals[p], pieces, vocabulary, p) for p in models)


def _read(path: Path) -> ModelProto:
  original = ModelProto.FromString(Tokenizer.from_file(path).model)
  spec = original.trainer_spec
  if spec.model_type not in (spec.UNIGRAM, spec.BPE):
    raise InputError(
      f'{path}: a SentencePiece model of the type '
      f'{spec.ModelType.Name(spec.model_type)}; it must be UNIGRAM or BPE'
    )
  return original


def _of_text(model: ModelProto) -> dict[str, ModelProto.SentencePiece]:
  silent = _Piece.UNKNOWN, _Piece.CONTROL
  return {p.piece: p for p in model.pieces if p.type not in silent}


def _rebuilt(
  original: ModelProto,
  pieces: Collection[str],
  vocabulary: Vocabulary,
  path: Path,
) -> Tokenizer:
  model = ModelProto()
  model.CopyFrom(original)
  del model.pieces[:]
  text = _of_text(original)
  characters = set(''.join(text))
  lowest = min((piece.score for piece in text.values()), default=0.0)
  silent = {vocabulary.start, vocabulary.end, *vocabulary.symbols}
  for piece in pieces:
    if piece == vocabulary.unknown:
      model.pieces.add(piece=piece, type=_Piece.UNKNOWN)
    elif piece in silent:
      model.pieces.add(piece=piece, type=_Piece.CONTROL)
    elif piece in text:
      model.pieces.add().CopyFrom(text[piece])
    elif len(piece) == 1 and piece not in characters:
      model.pieces.add(piece=piece, score=lowest)
    else:
      model.pieces.add(piece=piece, type=_Piece.UNUSED)
  spec = model.trainer_spec
  spec.bos_piece, spec.eos_piece = vocabulary.start, vocabulary.end
  spec.unk_piece, spec.vocab_size = vocabulary.unknown, len(pieces)
  foreign = [p.piece for p in model.pieces if p.type == _Piece.UNUSED]
  # BPE would merge to them, but the unigram algorithm never takes them.
  if spec.model_type == spec.BPE and foreign:
    raise InputError(
      f'{path}: a BPE model that lacks {len(foreign):,} pieces of the '
      f'vocabulary, {foreign[0]!r} for example; give the model that the '
      'vocabulary was made with, or one of the type UNIGRAM'
    )
  return Tokenizer(model.SerializeToString(deterministic=True), str(path))
