"""Formats of the lines of input and output: text, JSON, and views of a model.

A line that was translated in pieces is viewed as one: its pieces follow each
other, and a piece has no weight on another piece's source. A link i-j of a hard
alignment says that piece or word j of the translation comes from piece or word
i of the source, both counted from 0 (the format of Pharaoh and Moses); end
symbols have no number and no link.

Axis letters: S source, T target, L layers, D model width.
"""

import contextlib
import dataclasses
import itertools
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Float

from fusion_jax.cli.text_io import (
  open_input,
  open_output,
  open_whole,
  read_lines,
)
from fusion_jax.config import DecodingConfig
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.batches import PairIds
from fusion_jax.decoding.score import Scored
from fusion_jax.decoding.translate import Translation
from fusion_jax.decoding.views import (
  Internals,
  InternalsSelection,
  View,
  Viewer,
)
from fusion_jax.errors import InputError
from fusion_jax.files import parse_json
from fusion_jax.runs.loading import TrainedModel

# Number of faults that a message names.
_NAMED = 3
_FIELDS = 'source', 'target', 'prefix'

# Digits of a weight in JSON.
_DIGITS = 6

Item = TypeVar('Item')


@dataclasses.dataclass(frozen=True)
class Line:
  """Line of input.

  Attributes:
    source: Text of the source.
    target: Translation to be scored.
    prefix: Beginning of the translation to be found.
    others: Fields of a JSON line that are passed on to the output.
  """

  source: str
  target: str = ''
  prefix: str = ''
  others: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@contextlib.contextmanager
def open_text(
  source: str, target: str = '', prefix: str = '', again: bool = False
) -> Iterator[Iterator[Line]]:
  """Read files whose lines of the same number belong together."""
  paths = {'source': source, 'target': target, 'prefix': prefix}
  given = {key: p for key, p in paths.items() if p or key == 'source'}
  with contextlib.ExitStack() as stack:
    files = [
      (path or 'stdin', stack.enter_context(open_input(path)))
      for path in given.values()
    ]
    rows = _side_by_side([(n, read_lines(f, n, again)) for n, f in files])
    yield (Line(**dict[str, Any](zip(given, row, strict=True))) for row in rows)


def _side_by_side(
  files: Sequence[tuple[str, Iterable[str]]],
) -> Iterator[tuple[str, ...]]:
  """Yield the lines of named files side by side."""
  names, lines = zip(*files, strict=True)
  for number, row in enumerate(itertools.zip_longest(*lines)):
    if None in row:
      short = names[row.index(None)]
      long = next(n for n, e in zip(names, row, strict=True) if e is not None)
      raise InputError(
        f'{short}: {number:,} lines, fewer than {long}: line i of one must '
        'belong to line i of the other'
      )
    yield row


@contextlib.contextmanager
def open_json(
  path: str, needed: Sequence[str], again: bool = False
) -> Iterator[Iterator[Line]]:
  """Read JSON lines: objects with a text 'source', 'target' or 'prefix'."""
  name = path or 'stdin'
  with open_input(path) as file:
    # Unlike a generator, this goes on after a line that is wrong.
    yield map(
      lambda number, text: _parsed(text, f'{name}, line {number}', needed),
      itertools.count(1),
      read_lines(file, name, again),
    )


def check_lines(
  lines: Iterator[Line], check: Callable[[int, Line], object]
) -> int:
  """Count the lines, or refuse them if any is wrong."""
  faults = []
  for number in itertools.count(1):
    try:
      check(number, next(lines))
    except StopIteration:
      break
    except InputError as error:
      faults.append(str(error))
  if len(faults) > _NAMED:
    faults[_NAMED:] = [f'{len(faults):,} such faults in all']
  if faults:
    raise InputError('; '.join(faults))
  return number - 1


def _parsed(text: str, where: str, needed: Sequence[str]) -> Line:
  values = parse_json(text, where)
  if not isinstance(values, dict):
    raise InputError(f"{where}: must be an object like {{'source': 'text'}}")
  for field in needed:
    if field not in values:
      raise InputError(f'{where}: the object has no {field!r}')
  own = {field: values.pop(field) for field in _FIELDS if field in values}
  for field, value in own.items():
    if not isinstance(value, str):
      raise InputError(f'{where}: {field!r} must be text, got {value!r}')
  return Line(**own, others=values)


def translation_json(
  index: int, line: Line, translations: Sequence[Translation], to: Tokenizer
) -> str:
  """Format everything known about the translations of a line as JSON."""
  entries = [
    {
      'text': translation.text,
      'score': translation.score,
      'log_probability': translation.log_probability,
      'tokens': to.pieces(i for pair in translation.pairs for i in pair.target),
      'token_log_probabilities': list(translation.token_log_probabilities),
    }
    for translation in translations
  ]
  return _dumped(index, line, {'source': line.source, 'translations': entries})


def translation_text(
  index: int, translations: Sequence[Translation], n_best: int, per_token: bool
) -> Iterator[str]:
  """Yield the best translation of a line, or the n best, as text."""
  if not n_best:
    yield translations[0].text
    return
  for translation in translations:
    columns = [str(index), translation.text, f'{translation.score:.6f}']
    if per_token:
      columns.append(_numbers(translation.token_log_probabilities))
    yield ' ||| '.join(columns)


def score_json(index: int, line: Line, scored: Scored) -> str:
  """Format everything known about the score of a pair as JSON, in one line."""
  return _dumped(
    index,
    line,
    {
      'source': line.source,
      'target': line.target,
      'log_probability': scored.log_probability,
      'mean': scored.mean,
      'score': scored.score,
      'token_log_probabilities': list(scored.tokens),
    },
  )


def score_text(scored: Scored, per_token: bool) -> str:
  """Format sum, mean, score and subword values of a pair, between tabs."""
  numbers = [scored.log_probability, scored.mean, scored.score]
  columns = [f'{number:.6f}' for number in numbers]
  if per_token:
    columns.append(_numbers(scored.tokens))
  return '\t'.join(columns)


def _numbers(values: Iterable[float]) -> str:
  return ' '.join(f'{value:.6f}' for value in values)


def _dumped(index: int, line: Line, fields: Mapping[str, Any]) -> str:
  whole = {**line.others, 'index': index, **fields}
  return json.dumps(whole, ensure_ascii=False)


Links = list[tuple[int, int]]


def piece_links(weights: Float[np.ndarray, 'T S']) -> Links:
  """Link every target piece to argmax_i of its weights."""
  inner = weights[:-1, :-1]
  if not inner.size:
    return []
  return [(int(i), j) for j, i in enumerate(inner.argmax(axis=1))]


def word_numbers(surfaces: Sequence[str], space_last: bool) -> list[range]:
  """Return the words of the text that every piece is a part of."""
  text = ''.join(surfaces)
  begins = (
    before.isspace() and not here.isspace()
    for before, here in itertools.pairwise(f' {text}')
  )
  # Number of the words that begin before each character.
  begun = [0, *itertools.accumulate(begins)]
  ranges, start = [], 0
  for surface in surfaces:
    end, seen = start + len(surface), start
    if not (space_last and surface.isspace()):
      seen = len(text) - len(text[start:].lstrip()) + 1
    word = max(begun[min(seen, len(text))] - 1, 0)
    ranges.append(range(word, min(max(begun[end], word + 1), begun[-1])))
    start = end
  return ranges


def word_links(
  links: Links, source: Sequence[range], target: Sequence[range]
) -> Links:
  """Link two words if any of their pieces are linked."""
  words = {
    word for i, j in links for word in itertools.product(source[i], target[j])
  }
  return sorted(words, key=lambda link: link[::-1])


def link_line(parts: Iterable[tuple[Links, int, int]]) -> str:
  """Format the links of a sentence translated in parts as one line."""
  numbered, before = [], (0, 0)
  for links, source, target in parts:
    numbered += [f'{before[0] + i}-{before[1] + j}' for i, j in links]
    before = before[0] + source, before[1] + target
  return ' '.join(numbered)


_WEIGHTS = '.jsonl'
_ALIGNMENTS = '.pharaoh', '.align'
_STATES = '.npz'


@dataclasses.dataclass(frozen=True)
class ViewFlags:
  """Flags of decode.py for views; files are '' if not given."""

  attention_output: str = ''
  attention_layers: str | int = 'mean'
  attention_heads: str | int = 'mean'
  alignment_unit: Literal['piece', 'word'] = 'piece'
  states_output: str = ''

  def __post_init__(self):
    for flag, ends in (
      ('attention_output', (_WEIGHTS, *_ALIGNMENTS)),
      ('states_output', (_STATES,)),
    ):
      path = getattr(self, flag)
      if path and not path.endswith(ends):
        raise InputError(f'--{flag}={path}: must end in {" or ".join(ends)}')
    read = self.attention_layers, self.attention_heads, self.alignment_unit
    if not self.attention_output and read != ('mean', 'mean', 'piece'):
      raise InputError(
        '--attention_layers, --attention_heads and --alignment_unit need '
        '--attention_output'
      )
    if self.alignment_unit == 'word' and not self.aligns:
      raise InputError(
        f'--alignment_unit=word: {self.attention_output} is for weights; '
        f'alignments end in {" or ".join(_ALIGNMENTS)}'
      )
    if self.aligns and 'all' in (self.attention_layers, self.attention_heads):
      raise InputError(
        '--attention_layers=all, --attention_heads=all: an alignment has one '
        "row of weights; give 'mean' or a number"
      )

  @property
  def aligns(self) -> bool:
    """Whether hard alignments are requested."""
    return self.attention_output.endswith(_ALIGNMENTS)


Unit = Literal['piece', 'word']

# Writes the views of a line with its number, counted from 0.
WriteViews = Callable[[int, Sequence[View]], object]


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
  path: str, source: Tokenizer, target: Tokenizer, unit: Unit = 'piece'
) -> Iterator[WriteViews]:
  """Write hard alignments, one line of links i-j for each line."""
  tags = len(source.tags)

  def part(view: View) -> tuple[list[tuple[int, int]], int, int]:
    links = piece_links(_attention(view)[:, tags:])
    ours, theirs = view.pair.source[tags:-1], view.pair.target[:-1]
    if unit == 'piece':
      return links, len(ours), len(theirs)
    read, made = source.surfaces(ours), target.surfaces(theirs)
    links = word_links(
      links,
      word_numbers(read, source.space_last),
      word_numbers(made, target.space_last),
    )
    return links, len(''.join(read).split()), len(''.join(made).split())

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
        member = zipfile.ZipInfo(f'{name}_{index}.npy')
        with archive.open(member, 'w', force_zip64=True) as part:
          np.lib.format.write_array(part, array, allow_pickle=False)

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
  states = {
    side: np.concatenate([getattr(x, side) for x in seen], axis=1)
    for side in ('encoder', 'decoder')
  }
  pairs = [view.pair for view in views]
  return states | {
    side: np.array([i for pair in pairs for i in getattr(pair, side)], np.int32)
    for side in ('source', 'target')
  }


# Passes the items on, in order, after the views of their pairs are written.
Show = Callable[
  [Iterable[Item], Callable[[Item], Sequence[PairIds]]], Iterator[Item]
]


@contextlib.contextmanager
def open_views(
  flags: ViewFlags, runs: Sequence[TrainedModel], options: DecodingConfig
) -> Iterator[Show]:
  """Open the requested files."""
  path = flags.attention_output
  if not (path or flags.states_output):
    yield lambda items, pairs_of: iter(items)
    return
  if len(runs) > 1:
    flag = 'attention' if path else 'states'
    raise InputError(f'--{flag}_output: takes one run, got {len(runs)}')
  selection = InternalsSelection(
    bool(path),
    flags.attention_layers,
    flags.attention_heads,
    bool(flags.states_output),
  )
  viewer = Viewer(runs[0], options, selection)
  with contextlib.ExitStack() as stack:
    files = _files(flags, runs[0], viewer)
    writers = [stack.enter_context(file) for file in files]

    def show(
      items: Iterable[Item], pairs_of: Callable[[Item], Sequence[PairIds]]
    ) -> Iterator[Item]:
      paired = ((item, pairs_of(item)) for item in items)
      for index, (item, views) in enumerate(viewer.view(paired)):
        for write in writers:
          write(index, views)
        yield item

    yield show


def _files(
  flags: ViewFlags, run: TrainedModel, viewer: Viewer
) -> Iterator[contextlib.AbstractContextManager[WriteViews]]:
  path = flags.attention_output
  tokenizers = run.source_tokenizer, run.target_tokenizer
  if flags.aligns:
    yield alignment_file(path, *tokenizers, flags.alignment_unit)
  elif path:
    yield attention_file(path, *tokenizers)
  if flags.states_output:
    yield states_file(flags.states_output, viewer.blank)
