"""Which flags of decode.py have a meaning together."""

import itertools
import os
from collections.abc import Sequence

from fusion_jax.decoding.lines import split_paths
from fusion_jax.decoding.request import Request
from fusion_jax.decoding.view_flags import ViewFlags
from fusion_jax.errors import InputError
from fusion_jax.files import same_file

_TRANSLATING = 'reference', 'prefix', 'interactive', 'warm_up'
_VIEWS = 'attention_output', 'states_output'
_INPUTS = 'input', 'target', 'prefix', 'reference'


def check_flags(request: Request) -> None:
  """Refuses flags that have no meaning together; nothing is opened.

  Raises:
    InputError: names the flag and what it does not go with.
  """
  mode = f'--mode={request.mode}'
  if request.mode == 'score':
    _check_scoring(request, mode)
  elif request.mode == 'certify':
    _check_certifying(request, mode)
  else:
    _refuse(request, ('target', 'sentences'), mode)
  if request.input_format == 'json':
    _refuse(request, ('target', 'prefix'), '--input_format=json')
  if request.output_format == 'json':
    _refuse(request, ('per_token',), '--output_format=json')
  elif request.mode == 'translate' and not request.n_best:
    _refuse(request, ('per_token',), '--n_best=0')
  _check_files(request)


def _check_scoring(request: Request, mode: str) -> None:
  if not request.target and request.input_format == 'text':
    raise InputError('--mode=score needs --target, the translations to score')
  _refuse(request, (*_TRANSLATING, 'n_best', 'sentences'), mode)


def _check_certifying(request: Request, mode: str) -> None:
  if not request.input:
    raise InputError('--mode=certify needs --input, a file to take lines from')
  if len(split_paths(request.workdir)) > 1:
    raise InputError('--workdir: --mode=certify takes one run')
  if 'json' in (request.input_format, request.output_format):
    raise InputError('--mode=certify reads text; its --output is JSON anyway')
  _refuse(request, (*_TRANSLATING, 'target', 'weights', 'per_token'), mode)
  _refuse(request.views, _VIEWS, mode)


def _check_files(request: Request) -> None:
  """Refuses to write two things into one file, or over what is read."""
  outputs = _paths(request, ('output',)) | _paths(request.views, _VIEWS)
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


def _paths(given: Request | ViewFlags, flags: Sequence[str]) -> dict[str, str]:
  """The files and those to come; not devices and pipes."""
  named = {flag: getattr(given, flag) for flag in flags}
  return {
    flag: path
    for flag, path in named.items()
    if path and (os.path.isfile(path) or not os.path.exists(path))
  }


def _refuse(
  given: Request | ViewFlags, flags: Sequence[str], what: str
) -> None:
  for flag in flags:
    if getattr(given, flag):
      raise InputError(f'--{flag} has no meaning with {what}')
