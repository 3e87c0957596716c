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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError

Sides = tuple[Tokenizer, Tokenizer]

_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece

# What the logit of a piece after the vocabulary is below that of the unknown
# token. Its probability is below the rounding of float32, and label smoothing
# does not suffer.
_NEVER = -30.0

# Largest number of pieces in a message.
_NAMED = 5


@dataclasses.dataclass(frozen=True)
class Vocabulary:
  """Vocabulary of a foreign program.

  Attributes:
    name: File that it was read from, for messages.
    pieces: Pieces in the order of their ids.
    start: Piece that the decoder reads first.
    end: Piece at the end of a line.
    unknown: Piece that stands for all others.
    symbols: Further pieces that stand for no text.
  """

  name: str
  pieces: Sequence[str]
  start: str
  end: str
  unknown: str
  symbols: Sequence[str] = ()

  def check(self) -> None:
    """Refuse a vocabulary without its symbols, or with a piece twice."""
    for piece in (self.start, self.end, self.unknown):
      if piece not in self.pieces:
        raise InputError(f'{self.name}: lacks the piece {piece!r}')
    if len(set(self.pieces)) < len(self.pieces) or '' in self.pieces:
      twice = next(p for p in self.pieces if not p or self.pieces.count(p) > 1)
      raise InputError(f'{self.name}: has the piece {twice!r} twice or empty')


def rebuilt_tokenizers(
  models: Sequence[Path], vocabulary: Vocabulary
) -> tuple[Tokenizer, ...]:
  """Return tokenizers that cut lines as models do, with a vocabulary's ids."""
  vocabulary.check()
  originals = [_read(path) for path in models]
  known = set(vocabulary.pieces)
  added: dict[str, None] = {}
  for path, original in zip(models, originals, strict=True):
    own = dict.fromkeys(piece.piece for piece in _of_text(original))
    if known.isdisjoint(own):
      raise InputError(
        f'{vocabulary.name}: has no piece of {path.name}; give the vocabulary '
        'of this model'
      )
    added |= {piece: None for piece in own if piece not in known}
  pieces = [*vocabulary.pieces, *added]
  tokenizers = []
  for path, original in zip(models, originals, strict=True):
    model = _rebuilt(original, pieces, vocabulary)
    _check_merges(path, model)
    serialized = model.SerializeToString(deterministic=True)
    tokenizers.append(Tokenizer(serialized, str(path)))
  return tuple(tokenizers)


def tokenizers_of(
  models: Sequence[Path], vocabularies: Sequence[Vocabulary]
) -> Sides:
  """Return the tokenizers of both sides."""
  first, last = vocabularies[0], vocabularies[-1]
  if list(first.pieces) == list(last.pieces):
    source, target = rebuilt_tokenizers(models, first)
  else:
    (source,) = rebuilt_tokenizers(models[:1], first)
    (target,) = rebuilt_tokenizers(models[1:], last)
  return source, target


def _read(path: Path) -> sentencepiece_model_pb2.ModelProto:
  tokenizer = Tokenizer.from_file(path)
  original = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
  spec = original.trainer_spec
  kind = spec.ModelType.Name(spec.model_type)
  if spec.model_type not in (spec.UNIGRAM, spec.BPE):
    raise InputError(
      f'{path}: a SentencePiece model of the type {kind}; it must be UNIGRAM '
      'or BPE'
    )
  return original


def _of_text(
  model: sentencepiece_model_pb2.ModelProto,
) -> list[sentencepiece_model_pb2.ModelProto.SentencePiece]:
  """Return the pieces that stand for text."""
  silent = _Piece.UNKNOWN, _Piece.CONTROL
  return [piece for piece in model.pieces if piece.type not in silent]


def _rebuilt(
  original: sentencepiece_model_pb2.ModelProto,
  pieces: Sequence[str],
  vocabulary: Vocabulary,
) -> sentencepiece_model_pb2.ModelProto:
  own = {piece.piece: piece for piece in _of_text(original)}
  characters = set(''.join(own))
  lowest = min((piece.score for piece in own.values()), default=0.0)
  silent = {vocabulary.start, vocabulary.end, *vocabulary.symbols}
  model = sentencepiece_model_pb2.ModelProto()
  model.CopyFrom(original)
  del model.pieces[:]
  for piece in pieces:
    if piece == vocabulary.unknown:
      model.pieces.add(piece=piece, type=_Piece.UNKNOWN)
    elif piece in silent:
      model.pieces.add(piece=piece, type=_Piece.CONTROL)
    elif piece in own:
      model.pieces.add().CopyFrom(own[piece])
    elif len(piece) == 1 and piece not in characters:
      model.pieces.add(piece=piece, score=lowest)
    else:
      model.pieces.add(piece=piece, type=_Piece.UNUSED)
  spec = model.trainer_spec
  spec.bos_piece, spec.eos_piece = vocabulary.start, vocabulary.end
  spec.unk_piece, spec.vocab_size = vocabulary.unknown, len(pieces)
  return model


def _check_merges(
  path: Path, model: sentencepiece_model_pb2.ModelProto
) -> None:
  """Refuse pieces that BPE would merge to although the original has them not.

  The unigram algorithm never takes an unused piece.
  """
  spec = model.trainer_spec
  foreign = [p.piece for p in model.pieces if p.type == _Piece.UNUSED]
  if spec.model_type == spec.BPE and foreign:
    raise InputError(
      f'{path}: a BPE model that lacks {len(foreign):,} pieces of the '
      f'vocabulary, {foreign[0]!r} for example; give the model that the '
      'vocabulary was made with, or one of the type UNIGRAM'
    )


class Added(NamedTuple):
  """Pieces that stand after a vocabulary.

  Attributes:
    unknown: Id of the unknown token.
    before: Number V of pieces of the vocabulary.
    after: Number W of all pieces.
  """

  unknown: int
  before: int
  after: int


def added_pieces(vocabulary: Vocabulary, tokenizer: Tokenizer) -> Added:
  """Return what a rebuilt tokenizer has more than its vocabulary."""
  unknown = vocabulary.pieces.index(vocabulary.unknown)
  return Added(unknown, len(vocabulary.pieces), tokenizer.vocabulary.size)


def notes_of(
  models: Sequence[Path],
  vocabularies: Sequence[Vocabulary],
  tokenizers: Sides,
) -> list[str]:
  """Say which pieces the models cut that their vocabularies lack."""
  ends = vocabularies[0], vocabularies[-1]
  notes = map(_unknown_pieces, models, ends, tokenizers)
  return list(dict.fromkeys(note for note in notes if note))


def _unknown_pieces(
  model: Path, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> str:
  found = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model)
  cut = [
    piece
    for piece in found.pieces[len(vocabulary.pieces) :]
    if piece.type in (_Piece.NORMAL, _Piece.USER_DEFINED)
  ]
  if not cut:
    return ''
  # The score is the logarithm of a probability, or minus the rank of a merge.
  cut.sort(key=lambda piece: -piece.score)
  named = ', '.join(repr(piece.piece) for piece in cut[:_NAMED])
  return (
    f'{vocabulary.name}: lacks {len(cut):,} pieces that {model.name} cuts, '
    f'which the model reads as {vocabulary.unknown}; the most frequent: {named}'
  )


def with_rows(table: np.ndarray, added: Added) -> np.ndarray:
  """Return a table with a row for each piece that was added."""
  if table.shape[:1] != (added.before,):
    return table
  count = added.after - added.before
  return np.concatenate([table, np.repeat(table[[added.unknown]], count, 0)])


def with_tables(
  arrays: Mapping[str, np.ndarray], sides: Mapping[str, Added]
) -> dict[str, np.ndarray]:
  """Return arrays whose tables have rows for the pieces that were added."""
  return {
    name: with_rows(array, sides[name]) if name in sides else array
    for name, array in arrays.items()
  }


def with_bias(bias: np.ndarray, added: Added) -> np.ndarray:
  """Return an output bias by which pieces that were added are never chosen."""
  grown = with_rows(bias, added)
  return grown + _NEVER * (np.arange(len(grown)) >= added.before)
