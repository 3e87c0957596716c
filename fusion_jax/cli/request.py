"""Request made of decode.py, its checks, and the loading of its runs."""

import argparse
import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fusion_jax.bounds import PositiveFloat, number
from fusion_jax.cli.text_io import split_paths
from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.ensemble import (
  Ensemble,
  in_direction,
  make_ensemble,
  with_groups,
)
from fusion_jax.decoding.views import InternalsSelection
from fusion_jax.errors import InputError
from fusion_jax.files import same_file
from fusion_jax.runs.directory import check_output
from fusion_jax.runs.loading import CheckpointSelection, TrainedModel, load_run

_WEIGHTS = '.jsonl'
_ALIGNMENTS = '.pharaoh', '.align'
_STATES = '.npz'

_TRANSLATING = 'reference', 'prefix', 'interactive', 'warm_up'
_VIEWS = 'attention_output', 'states_output'
_INPUTS = 'input', 'target', 'prefix', 'reference'


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
    if self.aligns and 'all' in (self.attention_layers, self.attention_heads):
      raise InputError(
        '--attention_layers=all, --attention_heads=all: an alignment has one '
        "row of weights; give 'mean' or a number"
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
      layers=self.attention_layers,
      heads=self.attention_heads,
      states=bool(self.states_output),
    )


@dataclasses.dataclass(frozen=True)
class DecodeRequest:
  """Request to translate, score or certify; fields are flags of decode.py.

  Attributes:
    selection: Checkpoints to load of each run.
    options: Fields of DecodingConfig that replace the run's.
    views: Files for the model's internals, for the scored pairs or for each
      line and its best translation.
  """

  workdir: str
  mode: Literal['translate', 'score', 'certify'] = 'translate'
  input: str = ''
  input_format: Literal['text', 'json'] = 'text'
  target: str = ''
  prefix: str = ''
  per_token: bool = False
  output: str = ''
  output_format: Literal['text', 'json'] = 'text'
  sentences: int | None = None
  reference: str = ''
  selection: CheckpointSelection = CheckpointSelection()
  n_best: int = 0
  source_language: str = ''
  target_language: str = ''
  interactive: bool = False
  warm_up: bool = False
  groups: str = ''
  weights: str = ''
  combine: Literal['arithmetic', 'geometric'] | None = None
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  views: ViewFlags = ViewFlags()

  @property
  def reads_files(self) -> bool:
    """Whether the input can be read twice: it is no pipe and no device."""
    paths = [self.input, *filter(None, (self.target, self.prefix))]
    return all(map(os.path.isfile, paths))

  def decoding(self, run: TrainedModel) -> DecodingConfig:
    """Return the run's options with those that replace them."""
    return dataclasses.replace(run.config.decoding, **self.options)


def load(request: DecodeRequest) -> Ensemble:
  """Load the runs that translate."""
  names = split_paths(request.workdir)
  weights = _weights(request.weights)
  runs = [load_one(name, request) for name in names]
  combine = request.combine or 'arithmetic'
  return make_ensemble(runs, names, weights, combine)


def load_one(workdir: str, request: DecodeRequest) -> TrainedModel:
  """Load one run, with the requested groups and languages."""
  trained = load_run(workdir, request.selection)
  languages = request.source_language, request.target_language
  trained = in_direction(trained, workdir, *languages)
  if request.groups:
    trained = with_groups(trained, request.groups)
  return trained


def _weights(text: str) -> list[float]:
  try:
    return [number(PositiveFloat)(part) for part in text.split(',') if text]
  except argparse.ArgumentTypeError as error:
    raise InputError(
      f'--weights={text}: must be numbers with commas between; one {error}'
    ) from None


# Flags that have no meaning in each mode.
_MEANINGLESS = {
  'translate': ('target', 'sentences'),
  'score': (*_TRANSLATING, 'n_best', 'sentences'),
  'certify': (*_TRANSLATING, 'target', 'weights', 'per_token'),
}


def check_flags(request: DecodeRequest) -> None:
  """Refuse flags that have no meaning together; no file is opened."""
  mode, several = request.mode, len(split_paths(request.workdir)) > 1
  _refuse(request, _MEANINGLESS[mode], f'--mode={mode}')
  if request.input_format == 'json':
    _refuse(request, ('target', 'prefix'), '--input_format=json')
  if request.output_format == 'json':
    _refuse(request, ('per_token',), '--output_format=json')
  elif mode == 'translate' and request.per_token > request.n_best:
    raise InputError('--per_token needs --n_best, or --mode=score')
  if mode == 'score' and not request.target and request.input_format == 'text':
    raise InputError('--mode=score needs --target, the translations to score')
  if mode == 'certify':
    _refuse(request.views, _VIEWS, '--mode=certify')
    if 'json' in (request.input_format, request.output_format):
      raise InputError('--mode=certify reads text; its --output is JSON anyway')
    if several or not request.input:
      raise InputError('--mode=certify takes one run, and lines of an --input')
  if request.combine and not several:
    raise InputError('--combine: needs an ensemble, --workdir=DIR,DIR')
  _check_files(request)


def _check_files(request: DecodeRequest) -> None:
  """Refuse to write two things into one file, or to overwrite an input."""
  outputs = _paths(request, ('output',)) | _paths(request.views, _VIEWS)
  for flag, path in outputs.items():
    check_output(path, f'--{flag}')
  inputs = _paths(request, _INPUTS)
  pairs = (
    *itertools.combinations(outputs.items(), 2),
    *itertools.product(outputs.items(), inputs.items()),
  )
  for (flag, path), (other, second) in pairs:
    if same_file(path, second):
      raise InputError(
        f'--{flag}={path}: is the same file as --{other}={second}; give another'
      )


def _paths(
  given: DecodeRequest | ViewFlags, flags: Sequence[str]
) -> dict[str, str]:
  """Return the regular or new files of flags, without devices and pipes."""
  named = {flag: getattr(given, flag) for flag in flags}
  return {
    flag: path
    for flag, path in named.items()
    if path and (os.path.isfile(path) or not os.path.exists(path))
  }


def _refuse(
  given: DecodeRequest | ViewFlags, flags: Sequence[str], what: str
) -> None:
  for flag in flags:
    if getattr(given, flag):
      raise InputError(f'--{flag} has no meaning with {what}')
