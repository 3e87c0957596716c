"""decode.py --mode=score: reads pairs and writes their log-probabilities."""

import contextlib
import itertools
from collections.abc import Iterator

from fusion_jax.cli.line_formats import (
  Line,
  check_lines,
  open_json,
  open_text,
  score_json,
  score_text,
)
from fusion_jax.cli.request import DecodeRequest, load
from fusion_jax.cli.text_io import open_output
from fusion_jax.cli.view_flags import open_views
from fusion_jax.decoding.pairs import PairReader
from fusion_jax.decoding.score import Scorer
from fusion_jax.progress import Progress


def score_files(request: DecodeRequest) -> None:
  """Write a line of scores for each pair."""
  total = None
  with _open_pairs(request) as lines:
    ensemble = load(request)
    first = ensemble.runs[0]
    options = request.decoding(first)
    scorer = Scorer(ensemble, options, lambda count: progress.add(count))
    if request.reads_files:
      with _open_pairs(request, again=True) as same:
        total = check_lines(
          same, lambda number, line: scorer.check(number, *_pair(line))
        )
    progress = Progress(total, 'lines')
    encoder = PairReader(first, options)
    with (
      open_views(request.views, ensemble.runs, options) as show,
      open_output(request.output, keep=total is None) as write,
    ):
      numbered = enumerate(lines, start=1)
      shown = show(
        numbered, lambda each: encoder.line(each[0], *_pair(each[1]))
      )
      read, scored = itertools.tee(shown)
      found = scorer.score(_pair(line) for _, line in scored)
      for (number, line), each in zip(read, found, strict=True):
        if request.output_format == 'json':
          write(score_json(number - 1, line, each))
        else:
          write(score_text(each, request.per_token))
  progress.finish()


def _open_pairs(
  request: DecodeRequest, again: bool = False
) -> contextlib.AbstractContextManager[Iterator[Line]]:
  if request.input_format == 'json':
    return open_json(request.input, ('source', 'target'), again)
  return open_text(request.input, request.target, again=again)


def _pair(line: Line) -> tuple[str, str]:
  return line.source, line.target
