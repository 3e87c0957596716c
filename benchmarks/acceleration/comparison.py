"""The comparison of the schemes, for as long as there is time."""

import functools
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.acceleration import texts
from benchmarks.acceleration.place import Place
from benchmarks.acceleration.work import Part, Piece
from benchmarks.programs import start

_TINY_RECIPE = Path(__file__).with_name('tiny.toml')
_TINY = (f'--recipe={_TINY_RECIPE}', '--phases=plain', '--schemes=none')
# For what it does after its --minutes: to stop a run, and to report.
_REST_SECONDS = 60


def part(place: Place) -> Part:
  """One piece, which ends when the time is over."""
  run = functools.partial(_measure, place)
  minutes = 1.5 if place.tiny else 5.0
  return Part(
    'the comparison of all schemes by its frozen recipe, as far as it gets',
    [Piece('comparison', minutes, run, texts.missing(place))],
    functools.partial(place.measured, 'comparison'),
    lambda found: found['report'],
  )


def _measure(place: Place, seconds: float) -> bool:
  begin, own = time.monotonic(), seconds - _REST_SECONDS
  folder = place.folder / 'comparison'
  command: tuple[Any, ...] = (
    *('-m', 'benchmarks.compare_fusions', '--priority=normal'),
    f'--data={texts.folder(place)}',
    f'--workdir={folder / "runs"}',
    f'--results={folder / "results"}',
    f'--minutes={own / 60}',
    *(_TINY if place.tiny else ()),
  )
  with place.options('comparison', seconds=seconds) as options:
    try:
      report = start(*command, **options)
    except subprocess.CalledProcessError as error:
      _keep(place, error.output)
      raise
  _keep(place, report)
  return time.monotonic() - begin < own


def _keep(place: Place, report: str) -> None:
  if report:
    place.add('comparison', 'report', report)
