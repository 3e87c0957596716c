"""decode.py --mode=score: two files in, a line of numbers for each pair."""

import itertools
from collections.abc import Iterable, Iterator

from fusion_jax.decoding.lines import (
  count_lines,
  open_input,
  open_output,
  read_lines,
)
from fusion_jax.decoding.pairs import PairEncoder
from fusion_jax.decoding.progress import Progress
from fusion_jax.decoding.request import Request, load_one
from fusion_jax.decoding.score import Scored, Scorer
from fusion_jax.decoding.view_flags import open_views
from fusion_jax.errors import InputError


def score_files(request: Request) -> None:
  """Writes a line of numbers for each pair, separated by tabs.

  Raises:
    InputError: a file or the run directory is wrong.
  """
  name = request.input or 'stdin'
  with (
    open_input(request.input) as sources,
    open_input(request.target) as targets,
  ):
    pairs = _pairs(
      (name, read_lines(sources, name)),
      (request.target, read_lines(targets, request.target)),
    )
    trained = load_one(request.workdir, request)
    progress = Progress(count_lines(request.input))
    options = request.decoding(trained)
    scorer = Scorer(trained, options, progress.add)
    encoder = PairEncoder(trained, options)
    with (
      open_output(request.output) as write,
      open_views(request.views, [trained], options) as show,
    ):
      shown = show(enumerate(pairs, start=1), encoder.line)
      for scored in scorer.score(pair for _, pair in shown):
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
