"""Which flags of decode.py have a meaning together."""

from collections.abc import Sequence

from fusion_jax.decoding.lines import split_paths
from fusion_jax.decoding.request import Request
from fusion_jax.decoding.view_flags import ViewFlags
from fusion_jax.errors import InputError

_TRANSLATING = 'reference', 'prefix', 'interactive', 'warm_up'
_VIEWS = 'attention_output', 'states_output'


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
  if request.output in request.views.outputs:
    raise InputError(f'--output={request.output}: is a file of views too')


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


def _refuse(
  given: Request | ViewFlags, flags: Sequence[str], what: str
) -> None:
  for flag in flags:
    if getattr(given, flag):
      raise InputError(f'--{flag} has no meaning with {what}')
