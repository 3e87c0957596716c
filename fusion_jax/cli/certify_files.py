"""decode.py --mode=certify: reads a file, prints a table and a verdict."""

import contextlib
import logging

import jax

from fusion_jax.cli.request import DecodeRequest, load_one
from fusion_jax.cli.text_io import open_input, open_whole, read_lines
from fusion_jax.config import DecodingConfig
from fusion_jax.decoding.certify.certify import certify
from fusion_jax.decoding.certify.report import as_json, failure, table
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.runs.loading import TrainedModel

logger = logging.getLogger(__name__)

_SENTENCES = 64


def certify_file(request: DecodeRequest) -> None:
  """Print the table of the check, and write JSON if `output` is given."""
  lines = sample_lines(request.input, request.sentences or _SENTENCES)
  trained = load_one(request.workdir, request)
  options = request.decoding(trained)
  with contextlib.ExitStack() as stack:
    file = None
    if request.output:
      file = stack.enter_context(open_whole(request.output))
    logger.info(
      '%s, step %d: %d lines', request.workdir, trained.step, len(lines)
    )
    found = certify(trained, options, lines, _n_best(request, options))
    if file:
      about = _about(request, trained, options)
      report = as_json(found, **about, lines=[number for number, _ in lines])
      file.write(report.encode('utf-8') + b'\n')
  for line in table(found):
    print(line, flush=True)
  if reason := failure(found):
    raise CheckFailed(reason)


def sample_lines(path: str, count: int) -> list[tuple[int, str]]:
  """Take lines spread evenly over a file, without those that have no text."""
  with open_input(path) as file:
    numbered = enumerate(read_lines(file, path), start=1)
    lines = [(number, line) for number, line in numbered if line.strip()]
  if not lines:
    raise InputError(f'{path}: has no line of text to translate')
  count = min(count, len(lines))
  return [lines[place * len(lines) // count] for place in range(count)]


def _n_best(request: DecodeRequest, options: DecodingConfig) -> int:
  """Return the requested number; by default 1 sample or the whole beam."""
  default = 1 if options.search == 'sample' else options.beam_size
  return request.n_best or default


def _about(
  request: DecodeRequest, run: TrainedModel, options: DecodingConfig
) -> dict[str, object]:
  device = jax.devices()[0]
  precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
  return {
    'workdir': request.workdir,
    'steps': list(run.steps) or [run.step],
    'input': request.input,
    'dtype': run.config.model.compute_dtype,
    'matmul_precision': precision or 'default',
    'search': options.search,
    'beam_size': options.beam_size,
    'batch_tokens': options.batch_tokens,
    'devices': jax.device_count(),
    'device_kind': device.device_kind,
    'jax': jax.__version__,
  }
