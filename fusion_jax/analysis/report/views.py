"""The views of a run for a report, found in its directory or made."""

import base64
import dataclasses
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.analysis.view import View, kept, look_at
from fusion_jax.analysis.views import views_of
from fusion_jax.errors import InputError

logger = logging.getLogger(__name__)

# Bytes; a larger drawing is shown as a PNG.
_LARGEST_SVG = 400_000
# A figure is not shown smaller than this share of the width it was drawn at.
_SMALLEST = 0.55


@dataclasses.dataclass(frozen=True)
class Picture:
  """A figure that is embedded in a page.

  Attributes:
    address: Data address that holds the bytes of the figure.
    width: Width at which the figure was drawn, in CSS pixels.
  """

  address: str
  width: int

  @classmethod
  def of_svg(cls, svg: bytes) -> 'Picture':
    """Return the picture of an SVG that Matplotlib wrote."""
    return cls(data_address(svg, 'image/svg+xml'), _width(svg))

  @property
  def least(self) -> int:
    """The least width at which it is readable, in CSS pixels."""
    return round(_SMALLEST * self.width)


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


@dataclasses.dataclass(frozen=True)
class _Found:
  key: str
  summary: str
  numbers: dict[str, Any]


def cards(analysed: RunWithText, folder: Path, slow: bool) -> Iterator[Card]:
  """Yield all views that apply to the run's model, in the order of the table.

  Views that read a text are taken from the folder if they were made of the same
  inputs; the others take seconds, and are always made.
  """
  for view in views_of(analysed.run.config.model):
    path = folder / f'{view.name}.json'
    found = _stored(path, analysed) if view.reads == 'text' else None
    if found is None and view.slow and not slow:
      yield Card(view, missing='It takes minutes.')
      continue
    try:
      if found is None:
        result = look_at(view, analysed, folder)
        logger.info('%s: %s', view.name, path)
        found = {'summary': result.summary, 'numbers': result.numbers}
    except InputError as error:
      logger.warning('%s is left out: %s', view.name, error)
      yield Card(view, missing=f'It could not be made: {error}.')
      continue
    yield Card(view, found, _picture(path))


def _stored(path: Path, analysed: RunWithText) -> Mapping[str, Any] | None:
  figures = map(path.with_suffix, ('.svg', '.png'))
  if not all(file.is_file() for file in figures):
    return None
  return kept(path, analysed, _Found)


def _picture(path: Path) -> Picture:
  """Return the figure of a view, as a PNG if the drawing is large."""
  svg = path.with_suffix('.svg').read_bytes()
  if len(svg) <= _LARGEST_SVG:
    return Picture.of_svg(svg)
  png = path.with_suffix('.png').read_bytes()
  return Picture(data_address(png, 'image/png'), _width(svg))


def data_address(content: bytes, kind: str) -> str:
  """Return an address that holds the content itself."""
  return f'data:{kind};base64,{base64.b64encode(content).decode()}'


def _width(svg: bytes) -> int:
  """Return the width in CSS pixels, 96 per inch; Matplotlib's points are 72."""
  match = re.search(rb'<svg [^>]*width="([\d.]+)pt"', svg)
  return round(float(match[1]) * 96 / 72) if match else 0
