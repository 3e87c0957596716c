"""MarianMT and OPUS-MT models of Hugging Face.

A folder has config.json, model.safetensors or pytorch_model.bin (or the parts
that their index names), source.spm, target.spm, vocab.json and, with a
vocabulary for each side, target_vocab.json. The model is a post-norm
Transformer; see `MarianMTModel` of transformers.
"""

import argparse
import collections
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.numpy
from pydantic import Field
from safetensors import SafetensorError

from fusion_jax.config import DecodingConfig, ModelConfig
from fusion_jax.config.model import TiedEmbeddings
from fusion_jax.errors import InputError, first_line
from fusion_jax.files import as_type, read_errors, read_json
from fusion_jax.tools.importers import imported
from fusion_jax.tools.importers.torch_weights import arrays_of, read_torch
from fusion_jax.tools.importers.vocabularies import Vocabulary, read_sides

# Longest line that MarianMT reads, in subwords.
_LONGEST = 512

_LANGUAGE_CODE = re.compile(r'>>.+<<')
_UNKNOWN = '<unk>'

# Whether the sides share a table, and whether the output is tied.
_TIED: dict[tuple[bool, bool], TiedEmbeddings] = {
  (True, True): 'all',
  (True, False): 'source_target',
  (False, True): 'target_output',
  (False, False): 'none',
}

# Largest number of language codes in a message.
_LISTED = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class MarianConfig(imported.Options):
  """Fields of config.json that decide what the model computes."""

  model_type: Literal['marian']
  d_model: int
  vocab_size: int
  encoder_ffn_dim: int
  decoder_ffn_dim: int
  decoder_start_token_id: int = Field(ge=0)
  activation_function: Literal['relu', 'swish', 'silu']
  eos_token_id: int = Field(0, ge=0)
  decoder_vocab_size: int | None = None
  scale_embedding: bool = False
  share_encoder_decoder_embeddings: bool = True
  tie_word_embeddings: bool = True
  normalize_before: Literal[False] = False
  normalize_embedding: Literal[False] = False
  add_final_layer_norm: Literal[False] = False
  static_position_embeddings: Literal[True] = True
  num_beams: int = Field(4, ge=1)
  length_penalty: float = Field(1.0, ge=0)
  bad_words_ids: list[list[int]] | None = None


def read(flags: argparse.Namespace) -> imported.Imported:
  folder = flags.input
  config = _read_config(folder)
  model = _model_of(config)
  source, target = _vocabularies(folder, config)
  models = [folder / f'{side}.spm' for side in ('source', 'target')]
  sides = read_sides(models, (source, target))
  named = _optional(folder / 'tokenizer_config.json')
  codes = (named.get(f'{side}_lang') or '' for side in ('source', 'target'))
  languages = imported.languages_of(flags, folder, *codes)
  tag = _target_tag(source, languages[1])
  run = imported.config_of(
    flags, languages, model, _decoding_of(config, target), tag
  )
  return imported.Imported(
    run, sides, folder, _read_arrays(folder), imported.PROGRAMS['marian']
  )


def _read_config(folder: Path) -> MarianConfig:
  path = folder / 'config.json'
  if not path.is_file():
    raise InputError(
      f'--input={folder}: no MarianMT model: it has no config.json; give the '
      'folder of a model of Hugging Face'
    )
  values = read_json(path, dict[str, Any])
  if values.get('model_type') != 'marian':
    raise InputError(
      f'{path}: model_type: must be "marian", got '
      f'{values.get("model_type")!r}; no other models are read'
    )
  values |= _optional(folder / 'generation_config.json')
  return imported.read_options(
    values, MarianConfig, ('attention_heads', 'ffn_dim'), path
  )


def _model_of(config: MarianConfig) -> ModelConfig:
  shared = config.share_encoder_decoder_embeddings
  return config.model(
    config.activation_function,
    width=config.d_model,
    filter=config.encoder_ffn_dim,
    positions='marian',
    scale_embedding=config.scale_embedding,
    tied_embeddings=_TIED[shared, config.tie_word_embeddings],
    output_bias=True,
  )


def _decoding_of(
  config: MarianConfig, vocabulary: Vocabulary
) -> DecodingConfig:
  """Return the options of decoding that `generate` would take."""
  forbidden = [ids[0] for ids in config.bad_words_ids or () if len(ids) == 1]
  pieces = vocabulary.pieces
  return DecodingConfig(
    beam_size=config.num_beams,
    length_penalty='length',
    alpha=config.length_penalty,
    forbidden=tuple(pieces[n] for n in forbidden if 0 <= n < len(pieces)),
    max_source_length=_LONGEST,
  )


def _vocabularies(
  folder: Path, config: MarianConfig
) -> tuple[Vocabulary, Vocabulary]:
  _check_added(folder)
  source = _read_vocabulary(folder / 'vocab.json', config, config.vocab_size)
  if config.share_encoder_decoder_embeddings:
    return source, source
  path = folder / 'target_vocab.json'
  named = _optional(folder / 'tokenizer_config.json').get('separate_vocabs')
  separate = path.is_file() if named is None else named
  size = config.decoder_vocab_size or config.vocab_size
  path = path if separate else folder / 'vocab.json'
  return source, _read_vocabulary(path, config, size)


def _check_added(folder: Path) -> None:
  known = read_json(folder / 'vocab.json', dict[str, int])
  path = folder / 'added_tokens.json'
  for token, number in _optional(path).items():
    if known.get(token) != number:
      raise InputError(
        f'{path}: adds tokens to vocab.json, {token!r} for example, which is '
        'not read; give the model without them'
      )


def _optional(path: Path) -> dict[str, Any]:
  return read_json(path, dict[str, Any]) if path.is_file() else {}


def _read_vocabulary(path: Path, config: MarianConfig, size: int) -> Vocabulary:
  ids = read_json(path, dict[str, int])
  pieces = sorted(ids, key=ids.__getitem__)
  if [ids[piece] for piece in pieces] != list(range(size)):
    raise InputError(
      f'{path}: has {len(pieces):,} pieces, and must give each of the ids 0 to '
      f'{size - 1} of config.json to one piece; give the files of one model'
    )
  start, end = config.decoder_start_token_id, config.eos_token_id
  if max(start, end) >= size:
    raise InputError(
      f'{path}: lacks the ids {start} or {end} of config.json, which start and '
      'end a line; give the files of one model'
    )
  return Vocabulary(
    str(path),
    pieces,
    pieces[start],
    pieces[end],
    _UNKNOWN,
    [piece for piece in pieces if _LANGUAGE_CODE.fullmatch(piece)],
  )


def _target_tag(vocabulary: Vocabulary, target: str) -> str:
  """Return the pattern of the codes of target languages, if there are any."""
  if not vocabulary.symbols:
    return ''
  if f'>>{target}<<' not in vocabulary.symbols:
    listed = ', '.join(code[2:-2] for code in vocabulary.symbols[:_LISTED])
    raise InputError(
      f'{vocabulary.name}: has codes of target languages, but none for '
      f'{target!r}; give --target_language, one of {listed}'
    )
  return '>>{lang}<<'


def _read_arrays(folder: Path) -> dict[str, np.ndarray]:
  for name, read in _READERS.items():
    path, index = folder / name, folder / f'{name}.index.json'
    if path.is_file():
      return read(path)
    if index.is_file():
      return _read_parts(index, read)
  raise InputError(f'{folder}: has neither {" nor ".join(_READERS)}')


def _read_parts(
  index: Path, read: Callable[[Path], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
  """Read arrays that are spread over the files that an index names."""
  files = read_json(index, dict[str, Any]).get('weight_map')
  as_type(files, dict[str, str], f'{index}: weight_map')
  names = sorted({Path(name).name for name in files.values()})
  parts = [read(index.with_name(name)) for name in names]
  return dict(collections.ChainMap(*parts))


def _read_safe(path: Path) -> dict[str, np.ndarray]:
  with read_errors(path):
    try:
      return safetensors.numpy.load_file(path)
    except SafetensorError as error:
      raise InputError(
        f'{path}: not a safetensors file, or damaged: {first_line(error)}'
      ) from None


def _read_pickled(path: Path) -> dict[str, np.ndarray]:
  return arrays_of(read_torch(path), f'{path}: has no weights by name')


_READERS = {'model.safetensors': _read_safe, 'pytorch_model.bin': _read_pickled}
