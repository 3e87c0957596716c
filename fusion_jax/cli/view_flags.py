"""Flags of decode.py that write views, and the views that they request."""

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from fusion_jax.cli.view_writers import (
  Unit,
  WriteViews,
  alignment_file,
  attention_file,
  states_file,
)
from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.pairs import PairIds
from fusion_jax.decoding.views import InternalsSelection, Viewer
from fusion_jax.errors import InputError
from fusion_jax.faults import choice_fault
from fusion_jax.runs.loading import TrainedModel

_WEIGHTS = '.jsonl'
_ALIGNMENTS = '.pharaoh', '.align'
_STATES = '.npz'

Item = TypeVar('Item')

# Passes the items on, in order, after the views of their pairs are written.
Show = Callable[
  [Iterable[Item], Callable[[Item], Sequence[PairIds]]], Iterator[Item]
]


@dataclasses.dataclass(frozen=True)
class ViewFlags:
  """Files and selection of views; all are text, '' if not given.

  Attributes:
    attention_output: FILE.jsonl for weights over the source; FILE.pharaoh or
      FILE.align for hard alignments.
    attention_layers: 'mean' (the default), 'all', 'last' or a number from 1.
    attention_heads: 'mean' (the default), 'all' or a number from 1.
    alignment_unit: Unit of hard alignments, 'piece' (the default) or 'word'.
    states_output: FILE.npz for H[0..L].
  """

  attention_output: str = ''
  attention_layers: str = ''
  attention_heads: str = ''
  alignment_unit: str = ''
  states_output: str = ''

  def __post_init__(self):
    self._check_ends()
    for flag in ('attention_layers', 'attention_heads', 'alignment_unit'):
      if getattr(self, flag) and not self.attention_output:
        raise InputError(f'--{flag} needs --attention_output')
    unit = self.alignment_unit or 'piece'
    if fault := choice_fault(unit, ('piece', 'word')):
      raise InputError(f'--alignment_unit: {fault}')
    self._check_alignment(self.selection)

  def _check_ends(self) -> None:
    for flag, ends in (
      ('attention_output', (_WEIGHTS, *_ALIGNMENTS)),
      ('states_output', (_STATES,)),
    ):
      path = getattr(self, flag)
      if path and not path.endswith(ends):
        raise InputError(f'--{flag}={path}: must end in {" or ".join(ends)}')

  def _check_alignment(self, selection: InternalsSelection) -> None:
    if not self.aligns:
      if self.alignment_unit:
        raise InputError(
          f'--alignment_unit: {self.attention_output} is for weights; '
          f'alignments end in {" or ".join(_ALIGNMENTS)}'
        )
      return
    for flag, chosen in (
      ('layers', selection.layers),
      ('heads', selection.heads),
    ):
      if chosen == 'all':
        raise InputError(
          f'--attention_{flag}=all: an alignment has one row of weights; give '
          "'mean' or a number"
        )

  @property
  def outputs(self) -> list[str]:
    """Requested files."""
    return [
      path for path in (self.attention_output, self.states_output) if path
    ]

  @property
  def aligns(self) -> bool:
    """Whether hard alignments are requested."""
    return self.attention_output.endswith(_ALIGNMENTS)

  @property
  def selection(self) -> InternalsSelection:
    """Internals to view."""
    return InternalsSelection(
      attention=bool(self.attention_output),
      layers=_choice('attention_layers', self.attention_layers, 'last'),
      heads=_choice('attention_heads', self.attention_heads),
      states=bool(self.states_output),
    )


def _choice(flag: str, text: str, *more: str) -> str | int:
  names = ('mean', 'all', *more)
  if not text or text in names:
    return text or 'mean'
  if not re.fullmatch('[0-9]{1,9}', text):
    listed = ', '.join(map(repr, names))
    raise InputError(f'--{flag}={text}: must be {listed} or a number from 1')
  return int(text)


@contextlib.contextmanager
def open_views(
  flags: ViewFlags, runs: Sequence[TrainedModel], options: DecodingConfig
) -> Iterator[Show]:
  """Open the requested files."""
  if not flags.outputs:
    yield lambda items, pairs_of: iter(items)
    return
  if len(runs) > 1:
    flag = 'attention' if flags.attention_output else 'states'
    raise InputError(f'--{flag}_output: takes one run, got {len(runs)}')
  viewer = Viewer(runs[0], options, flags.selection)
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
    unit: Unit = 'word' if flags.alignment_unit == 'word' else 'piece'
    yield alignment_file(path, *tokenizers, unit)
  elif path:
    yield attention_file(path, *tokenizers)
  if flags.states_output:
    yield states_file(flags.states_output, viewer.blank)
