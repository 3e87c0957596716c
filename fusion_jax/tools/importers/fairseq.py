"""Transformers of fairseq.

A folder has a checkpoint, dict.SOURCE.txt and dict.TARGET.txt. fairseq reads
text that was cut into pieces before; here the SentencePiece models that cut it
are needed too.
"""

import argparse
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fusion_jax.config import DecodingConfig, ModelConfig
from fusion_jax.errors import InputError
from fusion_jax.tools.importers import imported, torch_weights
from fusion_jax.tools.importers.vocabularies import Vocabulary, read_sides

# Modules and classes of a checkpoint's options, which are read as dictionaries.
_INERT = frozenset((
  *('argparse', 'omegaconf', 'fairseq', 'numpy', '_codecs', 'typing', 'enum'),
  'collections.defaultdict',
  *(f'builtins.{n}' for n in ('dict', 'list', 'int', 'float', 'str', 'bool')),
))  # fmt: skip

# Queries, keys and values as one, before 2019.
_JOINT = re.compile(r'(\w+\.layers\.\d+\.\w+_attn)\.in_proj_(weight|bias)')

# Symbols before those of a dictionary's file, in the order of their ids.
_SYMBOLS = '<s>', '<pad>', '</s>', '<unk>'
# fairseq fills a dictionary up with these.
_FILLER = 'madeupword'
# Rows of a table of learned positions that stand for no position.
_UNUSED_POSITIONS = 2

_NAMES = imported.PROGRAMS['fairseq']


@dataclasses.dataclass(frozen=True, kw_only=True)
class FairseqConfig(imported.Options):
  """Options of a checkpoint that decide what the model computes.

  The defaults are those of the architecture `transformer`.
  """

  encoder_embed_dim: int
  decoder_embed_dim: int
  encoder_ffn_embed_dim: int
  decoder_ffn_embed_dim: int
  encoder_normalize_before: bool = False
  decoder_normalize_before: bool = False
  encoder_learned_pos: bool = False
  decoder_learned_pos: bool = False
  max_source_positions: int = 1024
  activation_fn: Literal['relu', 'swish'] = 'relu'
  share_all_embeddings: bool = False
  share_decoder_input_output_embed: bool = False
  no_scale_embedding: bool = False
  no_token_positional_embeddings: Literal[False] = False
  no_decoder_final_norm: Literal[False] = False
  no_cross_attention: Literal[False] = False
  cross_self_attention: Literal[False] = False
  layernorm_embedding: Literal[False] = False
  adaptive_softmax_cutoff: None = None
  source_lang: str = ''
  target_lang: str = ''


# Options of both sides that must be the same.
_BOTH_SIDES = (
  *('embed_dim', 'ffn_embed_dim', 'attention_heads'),
  *('normalize_before', 'learned_pos'),
)


def read(flags: argparse.Namespace) -> imported.Imported:
  if flags.source_spm is None:
    raise InputError(
      f'--input={flags.input}: fairseq reads text that is cut into pieces; '
      'give the SentencePiece model that cut it with --source_spm (and '
      '--target_spm, where the target has one of its own)'
    )
  path = _checkpoint(flags.input)
  saved = torch_weights.read_torch(path, _INERT)
  config = _read_config(saved, path)
  languages = imported.languages_of(
    flags, path, config.source_lang, config.target_lang
  )
  source, target = (
    _read_dictionary(flags.input / f'dict.{language}.txt')
    for language in languages
  )
  models = [flags.source_spm, flags.target_spm or flags.source_spm]
  sides = read_sides(models, (source, target))
  missing = f'{path}: no checkpoint of fairseq: it has no model'
  arrays = _renamed(torch_weights.arrays_of(saved.get('model'), missing))
  _check_rows(path, arrays, source, target)
  for side in ('source', 'target'):
    (table,) = _NAMES.tables[f'{side}_positions']
    if table in arrays:
      arrays[table] = np.atleast_1d(arrays[table])[_UNUSED_POSITIONS:]
  more = sides.target.after > sides.target.before
  if more:
    (bias,) = _NAMES.tables['output_bias']
    arrays[bias] = np.zeros(sides.target.before, np.float32)
  decoding = DecodingConfig(beam_size=5, length_penalty='length', alpha=1.0)
  run = imported.config_of(flags, languages, _model_of(config, more), decoding)
  return imported.Imported(run, sides, path, arrays, _NAMES)


def _checkpoint(folder: Path) -> Path:
  checkpoints = sorted(folder.glob('*.pt'))
  best = folder / 'checkpoint_best.pt'
  if best in checkpoints:
    return best
  if len(checkpoints) != 1:
    raise InputError(
      f'--input={folder}: must have checkpoint_best.pt or one other .pt file, '
      f'has {len(checkpoints)}'
    )
  return checkpoints[0]


def _read_config(saved: Any, path: Path) -> FairseqConfig:
  options: dict[str, Any] = {}
  if isinstance(saved, Mapping):
    cfg = _plain(saved.get('cfg')) or {}
    for part in (saved.get('args'), cfg.get('task'), cfg.get('model')):
      options |= _plain(part) or {}
  name = options.get('arch') or options.get('_name') or ''
  if not str(name).startswith('transformer'):
    raise InputError(
      f'{path}: no checkpoint of fairseq-train of the architecture transformer '
      f'or a named shape of it, got {name!r}'
    )
  return imported.read_options(options, FairseqConfig, _BOTH_SIDES, path)


def _plain(value: Any) -> Any:
  """Return options without the records of omegaconf around them."""
  if isinstance(value, torch_weights.Record):
    content = value.get('_content', value.get('_val', value))
    return _plain(dict(content)) if isinstance(content, dict) else content
  if isinstance(value, Mapping):
    return {n: _plain(part) for n, part in value.items() if n != '_parent'}
  return value


def _model_of(config: FairseqConfig, output_bias: bool) -> ModelConfig:
  tied = 'target_output' if config.share_decoder_input_output_embed else 'none'
  return config.model(
    config.activation_fn,
    width=config.encoder_embed_dim,
    filter=config.encoder_ffn_embed_dim,
    norm='pre' if config.encoder_normalize_before else 'post',
    positions='learned' if config.encoder_learned_pos else 'fairseq',
    max_positions=config.max_source_positions,
    scale_embedding=not config.no_scale_embedding,
    tied_embeddings='all' if config.share_all_embeddings else tied,
    output_bias=output_bias,
  )


def _read_dictionary(path: Path) -> Vocabulary:
  if not path.is_file():
    raise InputError(f'{path}: missing; it must lie beside the checkpoint')
  # No other character ends a line.
  text = path.read_bytes().decode(errors='replace').replace('\r\n', '\n')
  lines = text.removesuffix('\n').split('\n')
  pieces = [_piece(path, n, line) for n, line in enumerate(lines, 1)]
  fillers = [piece for piece in pieces if piece.startswith(_FILLER)]
  return Vocabulary(
    str(path),
    [*_SYMBOLS, *pieces],
    start='</s>',
    end='</s>',
    unknown='<unk>',
    symbols=['<s>', '<pad>', *fillers],
  )


def _piece(path: Path, number: int, line: str) -> str:
  piece, _, count = line.removesuffix(' #fairseq:overwrite').rpartition(' ')
  if not (piece and count.isascii() and count.isdigit()):
    raise InputError(
      f'{path}: line {number}: must be a piece, a space and a count, got '
      f'{line!r}'
    )
  return piece


def _renamed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Return the arrays by the names that they have since 2019.

  Before, a layer had a list of norms, and an attention one matrix for queries,
  keys and values.
  """
  renamed = {}
  for name, array in arrays.items():
    joint = _JOINT.fullmatch(name)
    for old, new in _NAMES.old.items():
      name = re.sub(old, new, name)
    if joint and array.ndim and len(array) % 3 == 0:
      for letter, part in zip('qkv', np.split(array, 3), strict=True):
        renamed[f'{joint[1]}.{letter}_proj.{joint[2]}'] = part
    else:
      renamed[name] = array
  return renamed


def _check_rows(
  path: Path,
  arrays: Mapping[str, np.ndarray],
  source: Vocabulary,
  target: Vocabulary,
) -> None:
  """Name the dictionary whose tokens are not those of its table."""
  sides = {'source_embedding': source, 'target_embedding': target}
  for table, vocabulary in sides.items():
    (name,) = _NAMES.tables[table]
    rows, known = np.shape(arrays.get(name, ()))[:1], len(vocabulary.pieces)
    if rows not in ((), (0,), (known,)):
      raise InputError(
        f'{path}: {name} has {rows[0]:,} tokens, and {vocabulary.name} '
        f'with the symbols has {known:,}; give the dictionaries of this model, '
        'of one pair of languages'
      )
