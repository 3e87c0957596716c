"""Request made of decode.py, its checks, and the loading of its runs."""

import argparse
import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fusion_jax.bounds import PositiveFloat, number
from fusion_jax.cli.text_io import split_paths
from fusion_jax.cli.view_flags import ViewFlags
from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.direction import in_direction
from fusion_jax.decoding.ensemble import Ensemble, make_ensemble
from fusion_jax.errors import InputError
from fusion_jax.files import same_file
from fusion_jax.runs.directory import check_output
from fusion_jax.runs.loading import CheckpointSelection, TrainedModel, load_run


@dataclasses.dataclass(frozen=True)
class DecodeRequest:
  """Request to translate, score or certify.

  Attributes:
    workdir: Run directory; several, separated by commas, form an ensemble.
    mode: 'translate', 'score' for the log-probabilities of given translations,
      or 'certify' to check whether the batches change translations.
    input: Input file, or '' for stdin.
    input_format: 'text', or 'json' for objects with 'source' and, if used,
      'target' and 'prefix'; other fields are passed on.
    target: File of the translations, with mode='score'.
    prefix: File of the beginnings of translations.
    per_token: Whether scores and the n best get a column with the
      log-probabilities of all subwords.
    output: Output file, or '' for stdout. With mode='certify' it is the
      report as JSON.
    output_format: 'text', or 'json' for one object a line with everything
      known.
    sentences: Number of lines to take with mode='certify'; None means 64.
    reference: File to compute scores against, or '' for no scores.
    comet: Model of COMET that scores too, or ''.
    selection: Checkpoints of each run.
    n_best: Number of output lines for each line, in the form
      'index ||| translation ||| score' with the index from 0. With 0 there is
      one translation a line.
    source_language, target_language: Direction to translate in, for a run
      with several. If given for another run, they must be the run's.
    interactive: Whether to translate every line before the next is read.
    warm_up: Whether to compile all shapes before the first line.
    groups: Groups 'first:last' of a GTRANS decoder that translate; '' takes
      the run's.
    weights: Weights of several runs, separated by commas; '' means equal.
    combine: Mean of the predictions of several runs; None: arithmetic.
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
  comet: str = ''
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


def with_groups(run: TrainedModel, groups: str) -> TrainedModel:
  """Return the run with only some groups of its decoder.

  Layers above the last of them are not computed, and the weights of the
  remaining groups sum to 1; Yang et al. (2022), Table VI.
  """
  decoder = run.config.model.decoder
  if decoder.fusion != 'gtrans':
    raise InputError(
      f'--groups={groups}: the decoder has no groups, its fusion is '
      f'{decoder.fusion!r}'
    )
  options = dataclasses.replace(decoder.gtrans, inference_groups=groups)
  model = dataclasses.replace(
    run.config.model, decoder=dataclasses.replace(decoder, gtrans=options)
  )
  return dataclasses.replace(
    run,
    config=dataclasses.replace(run.config, model=model),
    model=run.model.clone(config=model),
  )


_TRANSLATING = 'reference', 'comet', 'prefix', 'interactive', 'warm_up'
_VIEWS = 'attention_output', 'states_output'
_INPUTS = 'input', 'target', 'prefix', 'reference'


def check_flags(request: DecodeRequest) -> None:
  """Refuse flags that have no meaning together; no file is opened."""
  mode = f'--mode={request.mode}'
  if request.mode == 'score':
    _check_scoring(request, mode)
  elif request.mode == 'certify':
    _check_certifying(request, mode)
  else:
    _refuse(request, ('target', 'sentences'), mode)
    if request.comet and not request.reference:
      raise InputError('--comet needs --reference, the right translations')
  if request.input_format == 'json':
    _refuse(request, ('target', 'prefix'), '--input_format=json')
  if request.output_format == 'json':
    _refuse(request, ('per_token',), '--output_format=json')
  elif request.mode == 'translate' and request.per_token > request.n_best:
    raise InputError('--per_token needs --n_best, or --mode=score')
  if request.combine and len(split_paths(request.workdir)) < 2:
    raise InputError('--combine: needs an ensemble, --workdir=DIR,DIR')
  _check_files(request)


def _check_scoring(request: DecodeRequest, mode: str) -> None:
  if not request.target and request.input_format == 'text':
    raise InputError('--mode=score needs --target, the translations to score')
  _refuse(request, (*_TRANSLATING, 'n_best', 'sentences'), mode)


def _check_certifying(request: DecodeRequest, mode: str) -> None:
  if not request.input:
    raise InputError('--mode=certify needs --input, a file to take lines from')
  if len(split_paths(request.workdir)) > 1:
    raise InputError('--workdir: --mode=certify takes one run')
  if 'json' in (request.input_format, request.output_format):
    raise InputError('--mode=certify reads text; its --output is JSON anyway')
  _refuse(request, (*_TRANSLATING, 'target', 'weights', 'per_token'), mode)
  _refuse(request.views, _VIEWS, mode)


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
