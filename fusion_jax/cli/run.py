"""Requests of decode.py: checked, loaded, and carried out."""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import jax

from fusion_jax.bounds import PositiveFloat, number
from fusion_jax.cli.line_formats import (
  Line,
  ViewFlags,
  check_lines,
  open_json,
  open_text,
  open_views,
  score_json,
  score_text,
  translation_json,
  translation_text,
)
from fusion_jax.cli.text_io import (
  open_input,
  open_output,
  open_whole,
  read_lines,
  split_paths,
)
from fusion_jax.config import DecodingConfig
from fusion_jax.config.flags import fields_given
from fusion_jax.data.tokenizer import log_unreachable
from fusion_jax.decoding.certify import as_json, certify, report
from fusion_jax.decoding.ensemble import (
  Ensemble,
  in_direction,
  make_ensemble,
  with_groups,
)
from fusion_jax.decoding.score import Scorer
from fusion_jax.decoding.sentences import PairReader
from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import CheckFailed, InputError, first_line
from fusion_jax.files import same_file
from fusion_jax.metrics import (
  bleu_for,
  check_line_counts,
  corpus_scores,
  words_of,
)
from fusion_jax.parallel.processes import is_first
from fusion_jax.runs.directory import check_output
from fusion_jax.runs.loading import (
  CheckpointSelection,
  TrainedModel,
  load_run,
  selection_of,
)
from fusion_jax.startup import Progress

logger = logging.getLogger(__name__)

_TRANSLATING = 'reference', 'comet', 'prefix', 'interactive', 'warm_up'
_VIEWS = 'attention_output', 'states_output'
_INPUTS = 'input', 'target', 'prefix', 'reference'


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

  def decoding(self, run: TrainedModel) -> DecodingConfig:
    """Return the run's options with those that replace them."""
    return dataclasses.replace(run.config.decoding, **self.options)


def request_of(arguments: argparse.Namespace) -> DecodeRequest:
  """Return the request that the flags make."""
  options = fields_given(DecodingConfig, arguments)
  return DecodeRequest(
    **fields_given(DecodeRequest, arguments),
    selection=selection_of(arguments),
    options={name: v for name, v in options.items() if v is not None},
    views=ViewFlags(**fields_given(ViewFlags, arguments)),
  )


def load(request: DecodeRequest) -> Ensemble:
  """Load the runs that translate."""
  names = split_paths(request.workdir)
  weights = _weights(request.weights)
  runs = [_load_one(name, request) for name in names]
  return make_ensemble(runs, names, weights, request.combine or 'arithmetic')


def _load_one(workdir: str, request: DecodeRequest) -> TrainedModel:
  """Load one run, with the requested groups and languages."""
  run = load_run(workdir, request.selection)
  languages = request.source_language, request.target_language
  run = in_direction(run, workdir, *languages)
  return with_groups(run, request.groups) if request.groups else run


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
  if request.comet and not request.reference:
    raise InputError('--comet needs --reference, the right translations')
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


# Number of lines that --mode=certify takes by default.
_SENTENCES = 64


def run(request: DecodeRequest) -> None:
  """Carry out a request; the translations are written line by line.

  Scores go to stdout, or to stderr if the translations are on stdout.
  """
  check_flags(request)
  if request.mode == 'score':
    score_files(request)
  elif request.mode == 'certify':
    certify_file(request)
  else:
    _translate_and_evaluate(request)


def _translate_and_evaluate(request: DecodeRequest) -> None:
  with _open_lines(request) as opened:
    lines: Iterable[Line] = opened
    references = _lines(request.reference) if request.reference else None
    if references is not None:
      # Evaluation holds all lines anyway, so a wrong file is reported at once.
      lines = list(opened)
      check_line_counts(len(lines), len(references))
    comet = load_comet(request.comet) if request.comet else None
    trained = load(request)
    if references is not None and is_first():
      log_unreachable(references, trained.tokenizer, request.reference)
    first = trained.runs[0]
    words = words_of(
      first.config.data.target_language, request.decoding(first).bleu_tokenizer
    )
    if references is not None:
      # Fetches the tokenizer, or fails, before anything is translated.
      bleu_for(words)
    best = _translate(request, trained, lines)
  if references is not None and is_first():
    scores = corpus_scores(best, references, words)
    out = sys.stdout if request.output else sys.stderr
    print(scores.report, file=out, flush=True)
    if comet:
      sources = [line.source for line in lines]
      print(comet(sources, best, references), file=out, flush=True)


def _open_lines(
  request: DecodeRequest, again: bool = False
) -> contextlib.AbstractContextManager[Iterator[Line]]:
  if request.input_format == 'json':
    scored = ('target',) if request.mode == 'score' else ()
    return open_json(request.input, ('source', *scored), again)
  return open_text(request.input, request.target, request.prefix, again)


def _translate(
  request: DecodeRequest, trained: Ensemble, lines: Iterable[Line]
) -> list[str]:
  """Write the translations; return them if they are to be evaluated."""
  options = request.decoding(trained.runs[0])
  translator = Translator(
    trained,
    options,
    max(request.n_best, 1),
    lambda count: progress.add(count),
    at_once=request.interactive,
  )
  total = _count(
    request,
    lambda number, line: translator.check(number, line.source, line.prefix),
  )
  progress = Progress(total, 'lines')
  _announce(request, translator, trained.runs[0].step, options.beam_size)
  best = []
  with (
    open_views(request.views, trained.runs, options) as show,
    open_output(request.output, keep=total is None) as write,
  ):
    read, sources, prefixes = itertools.tee(lines, 3)
    translated = translator.translate_n_best(
      (line.source for line in sources), (line.prefix for line in prefixes)
    )
    shown = show(translated, lambda translations: translations[0].pairs)
    for index, (line, found) in enumerate(zip(read, shown, strict=True)):
      if request.output_format == 'json':
        write(translation_json(index, line, found, trained.tokenizer))
      else:
        per_token = request.per_token
        for text in translation_text(index, found, request.n_best, per_token):
          write(text)
      if request.reference:
        best.append(found[0].text)
  progress.finish()
  return best


def _count(
  request: DecodeRequest, check: Callable[[int, Line], object]
) -> int | None:
  """Refuse files with impossible lines; count them, or None for a pipe."""
  others = filter(None, (request.target, request.prefix))
  if not all(map(os.path.isfile, (request.input, *others))):
    return None
  with _open_lines(request, again=True) as lines:
    return check_lines(lines, check)


def _announce(
  request: DecodeRequest, translator: Translator, step: int, beam: int
) -> None:
  """Log the run and its options, and compile it if requested."""
  shapes = len(translator.shapes)
  name = request.workdir
  logger.info('%s, step %d: beam %d, %d shapes', name, step, beam, shapes)
  compiled = translator.warm_up() if request.warm_up else ()
  for place, (shape, seconds) in enumerate(compiled, start=1):
    logger.info(
      'shape %d of %d: %d sentences of %d, translations of %d: %.1f s',
      *(place, shapes, *shape, seconds),
    )


def _lines(path: str) -> list[str]:
  with open_input(path) as file:
    return list(read_lines(file, path))


def score_files(request: DecodeRequest) -> None:
  """Write a line of scores for each pair."""
  with _open_lines(request) as lines:
    ensemble = load(request)
    first = ensemble.runs[0]
    options = request.decoding(first)
    scorer = Scorer(ensemble, options, lambda count: progress.add(count))
    total = _count(
      request, lambda number, line: scorer.check(number, *_pair(line))
    )
    progress = Progress(total, 'lines')
    encoder = PairReader(first, options)
    with (
      open_views(request.views, ensemble.runs, options) as show,
      open_output(request.output, keep=total is None) as write,
    ):
      numbered = enumerate(lines, start=1)
      shown = show(
        numbered, lambda entry: encoder.line(entry[0], *_pair(entry[1]))
      )
      read, scored = itertools.tee(shown)
      scores = scorer.score(_pair(line) for _, line in scored)
      for (number, line), result in zip(read, scores, strict=True):
        if request.output_format == 'json':
          write(score_json(number - 1, line, result))
        else:
          write(score_text(result, request.per_token))
  progress.finish()


def _pair(line: Line) -> tuple[str, str]:
  return line.source, line.target


def certify_file(request: DecodeRequest) -> None:
  """Print the table of the check, and write JSON if `output` is given."""
  lines = sample_lines(request.input, request.sentences or _SENTENCES)
  trained = _load_one(request.workdir, request)
  options = request.decoding(trained)
  with contextlib.ExitStack() as stack:
    file = None
    if request.output:
      file = stack.enter_context(open_whole(request.output))
    logger.info(
      '%s, step %d: %d lines', request.workdir, trained.step, len(lines)
    )
    # Without --n_best 1 sample, or the whole beam.
    default = 1 if options.search == 'sample' else options.beam_size
    certificate = certify(trained, options, lines, request.n_best or default)
    if file:
      about = _about(request, trained, options)
      file.write(as_json(certificate, **about) + b'\n')
  for line in report(certificate):
    print(line, flush=True)
  if trained.config.model.compute_dtype != 'float32':
    print('reported, not judged: only float32 is')
  elif certificate.fault:
    raise CheckFailed(certificate.fault)
  else:
    print('certified')


def sample_lines(path: str, count: int) -> list[tuple[int, str]]:
  """Take lines spread evenly over a file, without those that have no text."""
  numbered = enumerate(_lines(path), start=1)
  lines = [(number, line) for number, line in numbered if line.strip()]
  if not lines:
    raise InputError(f'{path}: has no line of text to translate')
  count = min(count, len(lines))
  return [lines[place * len(lines) // count] for place in range(count)]


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
    'precision': run.precision,
    'matmul_precision': precision or 'default',
    'search': options.search,
    'beam_size': options.beam_size,
    'batch_tokens': options.batch_tokens,
    'devices': jax.device_count(),
    'device_kind': device.device_kind,
    'jax': jax.__version__,
  }


# Pairs that COMET reads at a time.
_BATCH = 16

# Sources, translations and references to a line for the user.
Comet = Callable[[Sequence[str], Sequence[str], Sequence[str]], str]


def load_comet(name: str) -> Comet:
  """Load a model of COMET (Rei et al. 2020) by the package unbabel-comet.

  The package is no requirement: it needs PyTorch and models of gigabytes. It
  runs on the CPU, because JAX holds the accelerators.
  """
  try:
    from comet import download_model, load_from_checkpoint
  except ImportError:
    raise InputError(
      f'--comet={name}: the package unbabel-comet is missing: '
      'pip install unbabel-comet'
    ) from None
  try:
    path = name if os.path.isfile(name) else download_model(name)
    model = load_from_checkpoint(path)
  except Exception as error:
    raise InputError(f'--comet={name}: {first_line(error)}') from error
  version = importlib.metadata.version('unbabel-comet')
  signature = f'COMET|nrefs:1|model:{name}|version:{version}'

  def line(*texts: Sequence[str]) -> str:
    rows = [
      {'src': source, 'mt': translation, 'ref': reference}
      for source, translation, reference in zip(*texts, strict=True)
    ]
    prediction = model.predict(
      rows, batch_size=_BATCH, gpus=0, progress_bar=False
    )
    return f'{signature} = {prediction.system_score:.4f}'

  return line
