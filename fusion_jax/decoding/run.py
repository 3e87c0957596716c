"""What decode.py does: reads, translates or scores, writes."""

import logging
import sys
from collections.abc import Iterable, Iterator

from fusion_jax.decoding.ensemble import Ensemble
from fusion_jax.decoding.lines import (
  count_lines,
  open_input,
  open_output,
  read_lines,
)
from fusion_jax.decoding.progress import Progress
from fusion_jax.decoding.request import Request, check_flags, load
from fusion_jax.decoding.score_files import score_files
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.decoding.view_flags import open_views
from fusion_jax.evaluation.metrics import check_line_counts, corpus_scores

logger = logging.getLogger(__name__)


def run(request: Request) -> None:
  """Carries out a request; the translations are written line for line.

  BLEU goes to stdout, or to stderr where the translations are on stdout.

  Raises:
    InputError: a file, a flag or the run directory is wrong. An output file
      is whole or not there.
  """
  check_flags(request)
  if request.mode == 'score':
    score_files(request)
  else:
    _translate_and_evaluate(request)


def _translate_and_evaluate(request: Request) -> None:
  with open_input(request.input) as file:
    lines: Iterable[str] = read_lines(file, request.input or 'stdin')
    total = count_lines(request.input)
    references = _read_references(request.reference)
    if references is not None:
      # Scoring holds all lines anyway; a wrong file is named at once.
      lines = list(lines)
      total = len(lines)
      check_line_counts(total, len(references))
    trained = load(request)
    best = _translate(request, trained, lines, total)
  if references is not None:
    scores = corpus_scores(
      best, references, trained.runs[0].config.data.target_language
    )
    out = sys.stdout if request.output else sys.stderr
    print(scores.report, file=out, flush=True)


def _translate(
  request: Request, trained: Ensemble, lines: Iterable[str], total: int | None
) -> list[str]:
  """Writes the translations; returns them if they are to be scored."""
  first = trained.runs[0]
  options = request.decoding(first)
  progress = Progress(total)
  n_best = max(request.n_best, 1)
  translator = Translator(trained, options, n_best, progress.add)
  logger.info(
    '%s, step %d: beam %d, at most %d shapes',
    request.workdir,
    first.step,
    options.beam_size,
    len(translator.shapes),
  )
  best = []
  with (
    open_output(request.output) as write,
    open_views(request.views, trained.runs, options) as show,
  ):
    translated = translator.translate_n_best(lines)
    shown = show(translated, lambda translations: translations[0].pairs)
    for index, translations in enumerate(shown):
      for line in _formatted(index, translations, request.n_best > 0):
        write(line)
      if request.reference:
        best.append(translations[0].text)
  progress.finish()
  return best


def _formatted(
  index: int, translations: list[Translation], n_best: bool
) -> Iterator[str]:
  for translation in translations:
    if n_best:
      yield f'{index} ||| {translation.text} ||| {translation.score:.6f}'
    else:
      yield translation.text


def _read_references(path: str) -> list[str] | None:
  if not path:
    return None
  with open_input(path) as file:
    return list(read_lines(file, path))
