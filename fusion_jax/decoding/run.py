"""What decode.py does: reads, translates, writes, scores."""

import dataclasses
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fusion_jax.config import DataConfig
from fusion_jax.decoding.lines import (
  count_lines,
  open_input,
  open_output,
  read_lines,
)
from fusion_jax.decoding.progress import Progress
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.errors import InputError
from fusion_jax.evaluation.metrics import check_line_counts, corpus_scores
from fusion_jax.training.trained import Run, load_run

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Request:
  """What to translate, with what, and where to.

  Attributes:
    workdir: the run directory.
    input: a file, or '' for stdin.
    output: a file, or '' for stdout.
    reference: a file to score against, or '' for no scores.
    step: a step, 'best' or 'last'.
    average: average the parameters of so many checkpoints.
    n_best: 0: one translation a line. Else so many lines of the form
      'index ||| translation ||| score' for each line; the index starts at 0.
    source_language, target_language: if given, the run's must be the same.
    groups: 'first:last' of a GTRANS decoder that translate; '': the run's.
    options: fields of DecodingConfig that replace the run's.
  """

  workdir: str
  input: str = ''
  output: str = ''
  reference: str = ''
  step: int | str = 'best'
  average: int = 1
  n_best: int = 0
  source_language: str = ''
  target_language: str = ''
  groups: str = ''
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def run(request: Request) -> None:
  """Carries out a request; the translations are written line for line.

  Scores go to stdout, or to stderr where the translations are on stdout.

  Raises:
    InputError: a file, a flag or the run directory is wrong. An output file
      is whole or not there.
  """
  with open_input(request.input) as file:
    lines: Iterable[str] = read_lines(file, request.input or 'stdin')
    total = count_lines(request.input)
    references = _read_references(request.reference)
    if references is not None:
      # Scoring holds all lines anyway; a wrong file is named at once.
      lines = list(lines)
      total = len(lines)
      check_line_counts(total, len(references))
    trained = load_run(request.workdir, request.step, request.average)
    _check_direction(request, trained.config.data)
    if request.groups:
      trained = with_groups(trained, request.groups)
    best = _translate(request, trained, lines, total)
  if references is not None:
    scores = corpus_scores(
      best, references, trained.config.data.target_language
    )
    out = sys.stdout if request.output else sys.stderr
    print(scores.report, file=out, flush=True)


def with_groups(run: Run, groups: str) -> Run:
  """The run with only some groups of its decoder.

  Layers above the last of them are not computed, and the weights of those
  kept sum to 1; Yang et al. (2022), Table VI.

  Args:
    run: with fusion='gtrans' in its decoder.
    groups: 'first:last', counted from 1.

  Returns:
    The same parameters in a model with those groups.

  Raises:
    InputError: the decoder has no groups, or not those.
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


def _translate(
  request: Request, trained: Run, lines: Iterable[str], total: int | None
) -> list[str]:
  """Writes the translations; returns them if they are to be scored."""
  options = dataclasses.replace(trained.config.decoding, **request.options)
  progress = Progress(total)
  n_best = max(request.n_best, 1)
  translator = Translator(trained, options, n_best, progress.add)
  logger.info(
    '%s, step %d: beam %d, at most %d shapes',
    request.workdir,
    trained.step,
    options.beam_size,
    len(translator.shapes),
  )
  best = []
  with open_output(request.output) as write:
    translated = translator.translate_n_best(lines)
    for index, translations in enumerate(translated):
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


def _check_direction(request: Request, data: DataConfig) -> None:
  for side in ('source_language', 'target_language'):
    given, trained = getattr(request, side), getattr(data, side)
    if given and given != trained:
      raise InputError(
        f'--{side}={given}: {request.workdir} translates from '
        f'{data.source_language} to {data.target_language}'
      )
