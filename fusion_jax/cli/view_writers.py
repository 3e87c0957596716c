"""Writers of views of lines into files: weights, alignments, states.

A line that was translated in pieces is written as one: its pieces follow each
other, and a piece has no weight on another piece's source.

Axis letters: S source, T target, L layers, D model width.
"""

import contextlib
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from fusion_jax.cli.alignments import (
  link_line,
  piece_links,
  word_links,
  word_numbers,
)
from fusion_jax.cli.text_io import open_output, open_whole
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.views import Internals, View

Unit = Literal['piece', 'word']

# Writes the views of a line with its number, counted from 0.
WriteViews = Callable[[int, Sequence[View]], None]

# Digits of a weight in JSON.
_DIGITS = 6


@contextlib.contextmanager
def attention_file(
  path: str, source: Tokenizer, target: Tokenizer
) -> Iterator[WriteViews]:
  """Write weights over the source, one JSON object a line.

  Its keys are index (from 0), source and target (subwords, end symbols
  included) and attention: for each layer and head, if all were selected, and
  for each target subword the weights of all source subwords, to 6 digits. An
  empty line has three empty lists.
  """
  with open_output(path) as write:

    def write_views(index: int, views: Sequence[View]) -> None:
      record = {
        'index': index,
        'source': [p for v in views for p in source.pieces(v.pair.source)],
        'target': [p for v in views for p in target.pieces(v.pair.target)],
        'attention': _rounded([_attention(view) for view in views]),
      }
      write(json.dumps(record, ensure_ascii=False))

    yield write_views


@contextlib.contextmanager
def alignment_file(
  path: str,
  source: Tokenizer,
  target: Tokenizer,
  unit: Unit = 'piece',
) -> Iterator[WriteViews]:
  """Write hard alignments, one line of links i-j for each line."""
  tags = len(source.tags)

  def part(view: View) -> tuple[list[tuple[int, int]], int, int]:
    links = piece_links(_attention(view)[:, tags:])
    ids = view.pair.source[tags:-1], view.pair.target[:-1]
    sides = zip((source, target), ids, strict=True)
    if unit == 'piece':
      return links, len(ids[0]), len(ids[1])
    texts = [(tokenizer.surfaces(own), tokenizer) for tokenizer, own in sides]
    ours, theirs = (word_numbers(own, each.space_last) for own, each in texts)
    source_words, target_words = (len(''.join(x).split()) for x, _ in texts)
    return word_links(links, ours, theirs), source_words, target_words

  with open_output(path) as write:
    yield lambda index, views: write(link_line(map(part, views)))


@contextlib.contextmanager
def states_file(path: str, blank: Internals) -> Iterator[WriteViews]:
  """Write H[0..L] of both stacks as an .npz file, array by array.

  Line i, counted from 0, has the arrays encoder_i [L+1, S, D], decoder_i
  [L+1, T, D], source_i [S] and target_i [T] (ids, end symbols included).
  """
  with open_whole(path) as file, zipfile.ZipFile(file, 'w') as archive:

    def write_views(index: int, views: Sequence[View]) -> None:
      for name, array in _states(views, blank).items():
        _write_array(archive, f'{name}_{index}', array)

    yield write_views


def _attention(view: View) -> Float[np.ndarray, '... _ _']:
  assert view.internals.attention is not None, 'weights are wanted'
  return np.asarray(view.internals.attention)


def _rounded(weights: list[Float[np.ndarray, '... _ _']]) -> list[Any]:
  if not weights:
    return []
  return np.round(_diagonal(weights).astype(np.float64), _DIGITS).tolist()


def _diagonal(
  blocks: list[Float[np.ndarray, '... _ _']],
) -> Float[np.ndarray, '... _ _']:
  """Put blocks along the diagonal of their last two axes, with 0 elsewhere."""
  sizes = [block.shape[-2:] for block in blocks]
  whole = np.zeros((*blocks[0].shape[:-2], *np.sum(sizes, axis=0)), np.float32)
  row = column = 0
  for block, (rows, columns) in zip(blocks, sizes, strict=True):
    whole[..., row : row + rows, column : column + columns] = block
    row, column = row + rows, column + columns
  return whole


def _states(views: Sequence[View], blank: Internals) -> dict[str, np.ndarray]:
  seen = [view.internals for view in views] or [blank]
  source, target = (
    np.array([i for view in views for i in view.pair[side]], np.int32)
    for side in (0, 1)
  )
  return {
    'encoder': np.concatenate(
      [internals.encoder for internals in seen], axis=1
    ),
    'decoder': np.concatenate(
      [internals.decoder for internals in seen], axis=1
    ),
    'source': source,
    'target': target,
  }


def _write_array(
  archive: zipfile.ZipFile, name: str, array: np.ndarray
) -> None:
  member = zipfile.ZipInfo(f'{name}.npy')
  with archive.open(member, 'w', force_zip64=True) as file:
    np.lib.format.write_array(file, array, allow_pickle=False)
