"""The views of a run for a report, found in its directory or made."""

import dataclasses
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fusion_jax.analysis.report.html import data_address
from fusion_jax.analysis.run_view import look_at
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view_result import View
from fusion_jax.analysis.views import views_of
from fusion_jax.errors import InputError
from fusion_jax.json_input import read_json

logger = logging.getLogger(__name__)

# Bytes; a larger drawing is shown as a PNG.
_LARGEST_SVG = 400_000


@dataclasses.dataclass(frozen=True)
class Picture:
  """A figure that is embedded in a page.

  Attributes:
    address: Data address that holds the bytes of the figure.
    width: Width at which the figure was drawn, in CSS pixels.
  """

  address: str
  width: int


@dataclasses.dataclass(frozen=True)
class Card:
  """A view of a run, as a report shows it.

  Attributes:
    view: View of the card.
    found: Content of VIEW.json; None if the view was not made.
    figure: Figure of the view; None if the view was not made.
    missing: Reason why the view was not made.
  """

  view: View
  found: Mapping[str, Any] | None = None
  figure: Picture | None = None
  missing: str = ''


def cards(subject: RunWithText, folder: Path, slow: bool) -> Iterator[Card]:
  """Yield all views that apply to the run's model, in the order of the table.

  The files of a view are taken from the folder if they come from the same
  checkpoints. Views that read only the metrics are always made again, because
  the training may have continued.

  Args:
    subject: Run and text to look at.
    folder: Folder of VIEW.json and its figures.
    slow: Whether to make views that take minutes, too.
  """
  for view in views_of(subject.run.config.model):
    found = None if view.reads == 'metrics' else _stored(view, subject, folder)
    if found is None and view.slow and not slow:
      yield Card(view, missing='It takes minutes.')
      continue
    try:
      if found is None:
        look_at(view, subject, folder)
        logger.info('%s: %s', view.name, folder / f'{view.name}.json')
        found = _read(folder / f'{view.name}.json')
    except InputError as error:
      logger.warning('%s is left out: %s', view.name, error)
      yield Card(view, missing=f'It could not be made: {error}.')
      continue
    yield Card(view, found, _picture(folder / view.name))


def _stored(
  view: View, subject: RunWithText, folder: Path
) -> Mapping[str, Any] | None:
  found = _read(folder / f'{view.name}.json')
  files = (folder / f'{view.name}.{kind}' for kind in ('svg', 'png'))
  if found is None or not all(file.is_file() for file in files):
    return None
  steps = list(subject.run.steps)
  same = found.get('step') == subject.run.step
  return found if same and found.get('steps', steps) == steps else None


def _read(path: Path) -> Mapping[str, Any] | None:
  """Read a VIEW.json; return None if there is none that can be shown."""
  try:
    found = read_json(path, dict)
  except InputError:
    return None
  return found if {'summary', 'numbers'} <= found.keys() else None


def drawn(svg: bytes) -> Picture:
  """Return the picture of an SVG that Matplotlib wrote."""
  return Picture(data_address(svg, 'image/svg+xml'), _width(svg))


def _picture(path: Path) -> Picture:
  """Return the figure of a view, as a PNG if the drawing is large."""
  svg, png = (path.with_name(f'{path.name}.{kind}') for kind in ('svg', 'png'))
  content = svg.read_bytes()
  if len(content) <= _LARGEST_SVG:
    return drawn(content)
  return Picture(data_address(png.read_bytes(), 'image/png'), _width(content))


def _width(svg: bytes) -> int:
  """Return the width in CSS pixels, 96 per inch; Matplotlib's points are 72."""
  match = re.search(rb'<svg [^>]*width="([\d.]+)pt"', svg)
  return round(float(match[1]) * 96 / 72) if match else 0
