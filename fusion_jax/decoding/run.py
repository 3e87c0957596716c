"""What decode.py does: reads, translates or scores, writes."""

import dataclasses
import itertools
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from fusion_jax.config import DataConfig
from fusion_jax.decoding.ensemble import Ensemble, make_ensemble
from fusion_jax.decoding.lines import (
  count_lines,
  open_input,
  open_output,
  read_lines,
)
from fusion_jax.decoding.progress import Progress
from fusion_jax.decoding.score import Scored, Scorer
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.errors import InputError
from fusion_jax.evaluation.metrics import check_line_counts, corpus_scores
from fusion_jax.training.trained import Run, load_run

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Request:
  """What to translate, with what, and where to.

  Attributes:
    workdir: the run directory; several, with commas between, translate as one.
    mode: 'translate', or 'score': the log-probabilities of translations that
      are given.
    input: a file, or '' for stdin.
    target: with mode='score' the file of the translations.
    per_token: with mode='score' a column with the log-probabilities of all
      subwords.
    output: a file, or '' for stdout.
    reference: a file to score against, or '' for no scores.
    step: a step, 'best' or 'last'.
    average: average the parameters of so many checkpoints.
    n_best: 0: one translation a line. Else so many lines of the form
      'index ||| translation ||| score' for each line; the index starts at 0.
    source_language, target_language: if given, the run's must be the same.
    groups: 'first:last' of a GTRANS decoder that translate; '': the run's.
    weights: of several runs, with commas between; '': all alike.
    combine: of several runs: the mean of their predictions.
    options: fields of DecodingConfig that replace the run's.
  """

  workdir: str
  mode: Literal['translate', 'score'] = 'translate'
  input: str = ''
  target: str = ''
  per_token: bool = False
  output: str = ''
  reference: str = ''
  step: int | str = 'best'
  average: int = 1
  n_best: int = 0
  source_language: str = ''
  target_language: str = ''
  groups: str = ''
  weights: str = ''
  combine: Literal['arithmetic', 'geometric'] = 'arithmetic'
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def run(request: Request) -> None:
  """Carries out a request; the translations are written line for line.

  BLEU goes to stdout, or to stderr where the translations are on stdout.

  Raises:
    InputError: a file, a flag or the run directory is wrong. An output file
      is whole or not there.
  """
  _check_mode(request)
  if request.mode == 'score':
    _score(request)
  else:
    _translate_and_evaluate(request)


def _check_mode(request: Request) -> None:
  scoring = request.mode == 'score'
  if scoring and not request.target:
    raise InputError('--mode=score needs --target, the translations to score')
  needless = {
    'target': not scoring and request.target,
    'per_token': not scoring and request.per_token,
    'reference': scoring and request.reference,
    'n_best': scoring and request.n_best,
    'weights': scoring and request.weights,
  }
  for flag, given in needless.items():
    if given:
      raise InputError(f'--{flag} has no meaning with --mode={request.mode}')


def _load(request: Request) -> Ensemble:
  names = request.workdir.split(',')
  runs = [_load_one(name, request) for name in names]
  return make_ensemble(runs, names, _weights(request.weights), request.combine)


def _load_one(workdir: str, request: Request) -> Run:
  trained = load_run(workdir, request.step, request.average)
  _check_direction(request, trained.config.data)
  if request.groups:
    trained = with_groups(trained, request.groups)
  return trained


def _weights(text: str) -> list[float]:
  try:
    return [float(part) for part in text.split(',') if text]
  except ValueError:
    raise InputError(
      f'--weights={text}: must be numbers with commas between'
    ) from None


def _score(request: Request) -> None:
  """Writes a line of numbers for each pair, separated by tabs."""
  name = request.input or 'stdin'
  with (
    open_input(request.input) as sources,
    open_input(request.target) as targets,
  ):
    pairs = _pairs(
      (name, read_lines(sources, name)),
      (request.target, read_lines(targets, request.target)),
    )
    if ',' in request.workdir:
      raise InputError('--workdir: --mode=score takes one run')
    trained = _load_one(request.workdir, request)
    options = dataclasses.replace(trained.config.decoding, **request.options)
    progress = Progress(count_lines(request.input))
    scorer = Scorer(trained, options, progress.add)
    with open_output(request.output) as write:
      for scored in scorer.score(pairs):
        write(_columns(scored, request.per_token))
  progress.finish()


def _columns(scored: Scored, per_token: bool) -> str:
  numbers = [scored.log_probability, scored.mean, scored.score]
  columns = [f'{number:.6f}' for number in numbers]
  if per_token:
    columns.append(' '.join(f'{token:.6f}' for token in scored.tokens))
  return '\t'.join(columns)


def _pairs(
  sources: tuple[str, Iterable[str]], targets: tuple[str, Iterable[str]]
) -> Iterator[tuple[str, str]]:
  """The lines of two named files, side by side."""
  lines = itertools.zip_longest(sources[1], targets[1])
  for number, (source, target) in enumerate(lines):
    if source is None or target is None:
      short, long = sources[0], targets[0]
      if target is None:
        short, long = long, short
      raise InputError(
        f'{short}: {number:,} lines, fewer than {long}: line i of one must '
        'translate line i of the other'
      )
    yield source, target


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
    trained = _load(request)
    best = _translate(request, trained, lines, total)
  if references is not None:
    scores = corpus_scores(
      best, references, trained.runs[0].config.data.target_language
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
  request: Request, trained: Ensemble, lines: Iterable[str], total: int | None
) -> list[str]:
  """Writes the translations; returns them if they are to be scored."""
  first = trained.runs[0]
  options = dataclasses.replace(first.config.decoding, **request.options)
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
