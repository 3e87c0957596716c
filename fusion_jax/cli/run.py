"""Execution of a request of decode.py: reads, translates or scores, writes."""

import contextlib
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator

from fusion_jax.cli.certify_files import certify_file
from fusion_jax.cli.comet_score import load_comet
from fusion_jax.cli.line_formats import (
  Line,
  check_lines,
  open_json,
  open_text,
  translation_json,
  translation_text,
)
from fusion_jax.cli.request import DecodeRequest, check_flags, load
from fusion_jax.cli.score_files import score_files
from fusion_jax.cli.text_io import (
  open_input,
  open_output,
  read_lines,
)
from fusion_jax.cli.view_flags import open_views
from fusion_jax.data.references import log_unreachable
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.ensemble import Ensemble
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.languages import words_of
from fusion_jax.metrics import bleu_for, check_line_counts, corpus_scores
from fusion_jax.parallel.processes import is_first
from fusion_jax.progress import Progress

logger = logging.getLogger(__name__)


def run(request: DecodeRequest) -> None:
  """Carry out a request; the translations are written line by line.

  BLEU and COMET go to stdout, or to stderr if the translations are on stdout.
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
    references = _read_references(request.reference)
    if references is not None:
      # Evaluation holds all lines anyway, so a wrong file is reported at once.
      held = list(opened)
      lines = held
      check_line_counts(len(held), len(references))
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
    return open_json(request.input, ('source',), again)
  return open_text(request.input, prefix=request.prefix, again=again)


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
  total = _checked(request, translator)
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
      for text in _formatted(request, index, line, found, trained.tokenizer):
        write(text)
      if request.reference:
        best.append(found[0].text)
  progress.finish()
  return best


def _checked(request: DecodeRequest, translator: Translator) -> int | None:
  """Refuse files with impossible lines; count them, or None for a pipe."""
  if not request.reads_files:
    return None
  with _open_lines(request, again=True) as lines:
    return check_lines(
      lines,
      lambda number, line: translator.check(number, line.source, line.prefix),
    )


def _announce(
  request: DecodeRequest, translator: Translator, step: int, beam: int
) -> None:
  """Log the run and its options, and compile it if requested."""
  shapes = len(translator.shapes)
  name = request.workdir
  logger.info('%s, step %d: beam %d, %d shapes', name, step, beam, shapes)
  if not request.warm_up:
    return
  for number, (shape, seconds) in enumerate(translator.warm_up(), start=1):
    rows, source, target = shape
    logger.info(
      'shape %d of %d: %d sentences of %d, translations of %d: %.1f s',
      number,
      shapes,
      rows,
      source,
      target,
      seconds,
    )


def _formatted(
  request: DecodeRequest,
  index: int,
  line: Line,
  translations: list[Translation],
  tokenizer: Tokenizer,
) -> Iterable[str]:
  if request.output_format == 'json':
    return [translation_json(index, line, translations, tokenizer)]
  return translation_text(
    index, translations, request.n_best, request.per_token
  )


def _read_references(path: str) -> list[str] | None:
  if not path:
    return None
  with open_input(path) as file:
    return list(read_lines(file, path))
