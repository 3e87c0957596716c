"""A common look for all figures, and functions that draw them.

Colours are those of Okabe and Ito (2008), which people with any kind of colour
vision can tell apart, and the colour map cividis, which looks the same to all.
Figures are made without pyplot: there is no global state and no screen.
"""

import base64
import dataclasses
import functools
import io
import itertools
import logging
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from fusion_jax.errors import InputError
from fusion_jax.files import write_whole

try:
  import matplotlib as mpl
  from matplotlib import font_manager
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure
  from matplotlib.gridspec import GridSpec
  from matplotlib.ticker import LogFormatter, MaxNLocator
except ModuleNotFoundError:
  raise InputError(
    "figures need matplotlib: pip install 'fusion_jax[plots]'"
  ) from None

logger = logging.getLogger(__name__)

COLOURS = (
  '#0072B2',
  '#D55E00',
  '#009E73',
  '#CC79A7',
  '#E69F00',
  '#56B4E9',
  '#000000',
)
MARKERS = 'osD^vPX'
_MAP = 'cividis'
# Fonts for scripts that the font shipped with matplotlib lacks.
_EASTERN = (
  'Noto Sans CJK JP',
  'Noto Sans CJK SC',
  'IPAGothic',
  'WenQuanYi Zen Hei',
  'Hiragino Sans',
  'PingFang SC',
  'Yu Gothic',
  'Microsoft YaHei',
  'Malgun Gothic',
)
# A map with more cells or columns than this shows no numbers in them.
_MOST_NUMBERS = 120
_MOST_COLUMNS = 14
# Ten steps of the numbers in the cells, which a map's colours tell apart.
_LEAST_SPAN = 0.1
# Most markers of a line, about.
_MOST_MARKERS = 20
# Small letters that fit into an inch.
_LETTERS = 14
# Most names shown side by side.
_MOST_NAMES = 20
# Most ticks of a line's x axis: of short numbers, and of those from 1,000 on.
_MOST_TICKS, _MOST_LONG_TICKS = 8, 4
_LONG_NUMBER = 1_000
_LEGEND: dict[str, Any] = {'fontsize': 'small', 'frameon': False}
# Bytes; a larger drawing is shown as a PNG.
_LARGEST_SVG = 400_000
# Width and height of a panel in inches.
_PANEL = 4.4, 3.2


def panels(
  count: int, columns: int = 2, size: tuple[float, float] = _PANEL
) -> tuple[Figure, list[Axes]]:
  """Make a figure of several panels, filled row by row."""
  columns = min(count, columns)
  rows = -(-count // columns)
  with mpl.rc_context(_look()):
    figure = Figure(
      figsize=(size[0] * columns, size[1] * rows), layout='constrained'
    )
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
  for spare in axes[count:]:
    spare.remove()
  return figure, list(axes[:count])


class Panel:
  """One panel of a figure: its title, `draw_lines` or the like, and values."""

  def __init__(self, title: str, draw: Callable[..., None], *values: Any):
    self.title, self.draw, self.values = title, draw, values


def draw_panels(
  contents: Sequence[Panel],
  columns: int = 2,
  size: tuple[float, float] = _PANEL,
) -> Figure:
  """Draw panels row by row; they are the first axes of the figure."""
  figure, places = panels(len(contents), columns, size)
  for axes, panel in zip(places, contents, strict=True):
    panel.draw(axes, *panel.values)
    axes.set_title(panel.title)
  return figure


def styles() -> Iterator[dict[str, Any]]:
  """Yield colour and marker of each next line; 49 pairs before one repeats."""
  for number in itertools.count():
    turn, place = divmod(number, len(COLOURS))
    marker = MARKERS[(place + turn) % len(MARKERS)]
    yield {'color': COLOURS[place], 'marker': marker, 'markersize': 4}


# x and y values of a line; None is a gap.
Line = tuple[Sequence[float | int], Sequence[float | int | None]]


def draw_lines(
  axes: Axes,
  lines: Mapping[str, Line],
  x: str,
  y: str,
  dashed: Mapping[str, str] = types.MappingProxyType({}),
) -> None:
  """Draw lines over whole numbers, each in a colour and marker of its own."""
  solid = (name for name in lines if name not in dashed)
  looks = dict(zip(solid, styles(), strict=False))
  for name, (xs, ys) in lines.items():
    if not len(xs):
      continue
    dash, look = ('--' if name in dashed else '-'), dashed.get(name, name)
    every = max(1, len(xs) // _MOST_MARKERS)
    values = np.array(ys, np.float64)
    axes.plot(xs, values, dash, label=name, markevery=every, **looks[look])
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  most = max((max(xs) for xs, _ in lines.values() if len(xs)), default=0)
  ticks = _MOST_TICKS if most < _LONG_NUMBER else _MOST_LONG_TICKS
  axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))
  axes.xaxis.set_major_formatter('{x:,.0f}')
  if len(axes.lines) > 1:
    _legend_beside(axes)


def _legend_beside(axes: Axes) -> None:
  """Put the legend to the right of the axes, where nothing is drawn."""
  place: dict[str, Any] = {'bbox_to_anchor': (1.01, 1), 'borderaxespad': 0}
  axes.legend(loc='upper left', **place, **_LEGEND)


class _PlainNumbers(LogFormatter):
  """Labels of a logarithmic axis: 0.06 and not 6 x 10^-2."""

  def __call__(self, x: float, pos: int | None = None) -> str:
    shown = super().__call__(x, pos)
    # Ticks have a digit or two, and errors of rounding after them.
    plain = np.format_float_positional(x, 4, fractional=False, trim='-')
    return plain if shown else ''


def make_logarithmic(axes: Axes) -> None:
  """Make the y axis logarithmic, with plain numbers."""
  axes.set_yscale('log')
  axes.yaxis.set_major_formatter(_PlainNumbers())
  axes.yaxis.set_minor_formatter(_PlainNumbers())


def thinned(names: Sequence[str]) -> list[str]:
  """Empty most names of a long list, at regular steps, to avoid overlap."""
  step = -(-len(names) // _MOST_NAMES)
  return ['' if place % step else name for place, name in enumerate(names)]


def share_legend(figure: Figure, axes: Sequence[Axes]) -> None:
  """Put one legend below panels of the same lines, instead of one in each."""
  handles, names = axes[0].get_legend_handles_labels()
  for panel in axes:
    if (legend := panel.get_legend()) is not None:
      legend.remove()
  longest = max(map(len, names)) + 8
  fitting = int(_LETTERS * figure.get_figwidth() / longest)
  look = _LEGEND | {'ncols': min(3, max(1, fitting))}
  figure.legend(handles, names, loc='outside lower center', **look)


def draw_bars(
  axes: Axes,
  groups: Sequence[str],
  bars: Mapping[str, Sequence[float | None]],
  x: str,
  y: str,
) -> None:
  """Draw bars side by side in groups, with a legend."""
  width = 0.8 / len(bars)
  places = np.arange(len(groups))
  looks = zip(bars.items(), styles(), strict=False)
  for index, ((name, heights), style) in enumerate(looks):
    shift = (index - (len(bars) - 1) / 2) * width
    values = np.array(heights, np.float64)
    axes.bar(places + shift, values, width, label=name, color=style['color'])
  axes.set_xticks(places, thinned(groups))
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  axes.grid(axis='x', visible=False)
  if len(bars) > 1:
    _legend_beside(axes)


def draw_map(
  axes: Axes,
  values: Float[np.ndarray, 'R C'],
  rows: Sequence[str],
  columns: Sequence[str],
  x: str,
  y: str,
  unit: str,
  limits: tuple[float, float] | None = None,
  upwards: bool = True,
) -> None:
  """Draw a map of numbers; cells that are not finite stay empty."""
  values = np.asarray(values, np.float64)
  low, high = limits or spanned(values)
  image = axes.imshow(
    values, _MAP, aspect='auto', interpolation='nearest', vmin=low, vmax=high
  )
  if upwards:
    axes.invert_yaxis()
  axes.figure.colorbar(image, ax=axes, label=unit)
  axes.set_xlabel(x)
  axes.set_ylabel(y)
  axes.grid(visible=False)
  for axis, names in ((axes.xaxis, columns), (axes.yaxis, rows)):
    if len(names):
      axis.set_ticks(range(len(names)), names)
    else:
      axis.set_major_locator(MaxNLocator(integer=True))
  if values.size <= _MOST_NUMBERS and values.shape[1] <= _MOST_COLUMNS:
    _write_numbers(axes, values, image.norm)


def spanned(values: Float[np.ndarray, '*axes']) -> tuple[float, float]:
  """Return limits around the finite values, apart by the least span."""
  finite = values[np.isfinite(values)]
  if not finite.size:
    return 0.0, _LEAST_SPAN
  low, high = float(finite.min()), float(finite.max())
  spare = max(0.0, _LEAST_SPAN - (high - low)) / 2
  return low - spare, high + spare


def _write_numbers(axes: Axes, values: Float[np.ndarray, 'R C'], norm) -> None:
  size = float(np.clip(70 / values.shape[1], 7, 10))
  look: dict[str, Any] = {'ha': 'center', 'va': 'center', 'fontsize': size}
  for (row, column), value in np.ndenumerate(values):
    if np.isfinite(value):
      colour = 'black' if norm(value) > 0.55 else 'white'
      axes.text(column, row, f'{value:z.2f}', color=colour, **look)


@dataclasses.dataclass(frozen=True)
class Picture:
  """Data address of a panel or a legend, and its width in CSS pixels."""

  address: str
  width: int
  is_legend: bool = False

  @classmethod
  def of(cls, figure: Figure, is_legend: bool = False) -> 'Picture':
    """Return a figure as an SVG, or as a PNG where that is too large."""
    box = figure.get_tightbbox() if is_legend else figure.bbox_inches
    content, kind = encoded(figure, 'svg', bbox_inches=box), 'svg+xml'
    if len(content) > _LARGEST_SVG:
      content, kind = encoded(figure, 'png', bbox_inches=box), 'png'
    address = f'data:image/{kind};base64,{base64.b64encode(content).decode()}'
    # CSS has 96 pixels an inch.
    return cls(address, round(96 * box.width), is_legend)


def as_panels(figure: Figure) -> Iterator[Picture]:
  """Take a figure apart: the legend of all panels, if any, and each panel."""
  every, (width, height) = figure.axes, figure.get_size_inches()
  for axes in every:
    figure.delaxes(axes)
  for legend in figure.legends[:]:
    handles = [handle for handle in legend.legend_handles if handle]
    names = [text.get_text() for text in legend.get_texts()]
    legend.remove()
    figure.set_layout_engine('none')
    one = figure.legend(handles, names, frameon=False)
    yield Picture.of(figure, is_legend=True)
    one.remove()
  figure.set_layout_engine('constrained')
  for panel in every:
    if (place := panel.get_subplotspec()) is None:
      continue  # The colours of another panel.
    grid = place.get_gridspec()
    figure.set_size_inches(width / grid.ncols, height / grid.nrows)
    bars = [image.colorbar.ax for image in panel.images if image.colorbar]
    for axes in (panel, *bars):
      figure.add_axes(axes)
    panel.set_subplotspec(GridSpec(1, 1, figure)[0])
    yield Picture.of(figure)
    for axes in (panel, *bars):
      figure.delaxes(axes)


def save(figure: Figure, path: Path) -> list[Path]:
  """Write a figure as PNG and SVG; the same numbers give the same files."""
  files = [path.with_name(f'{path.name}.{kind}') for kind in ('png', 'svg')]
  for file in files:
    write_whole(file, encoded(figure, file.suffix[1:]))
  return files


def encoded(figure: Figure, kind: str, **options: Any) -> bytes:
  """Return a figure as a file; the same numbers give the same bytes."""
  buffer = io.BytesIO()
  with mpl.rc_context(_look()), warnings.catch_warnings(record=True) as found:
    warnings.filterwarnings('always', 'Glyph')
    about = {'Date': None} if kind == 'svg' else None
    figure.savefig(buffer, format=kind, metadata=about, **options)
  missing = {str(w.message) for w in found if 'Glyph' in str(w.message)}
  if missing:
    logger.warning(
      'a figure shows boxes for %d letters that no font here has; for Chinese, '
      'Japanese and Korean install one of: %s',
      len(missing),
      ', '.join(_EASTERN),
    )
  for other in found:
    if str(other.message) not in missing:
      warnings.warn_explicit(
        other.message, other.category, other.filename, other.lineno
      )
  return buffer.getvalue()


@functools.cache
def _look() -> dict[Any, Any]:
  """Return the look of all figures, with the fonts that are installed."""
  installed = {font.name for font in font_manager.fontManager.ttflist}
  eastern = [name for name in _EASTERN if name in installed]
  return {
    'font.family': ['DejaVu Sans', *eastern],
    'font.size': 10,
    'axes.titlesize': 11,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.grid': True,
    'axes.axisbelow': True,
    'grid.color': '#DDDDDD',
    'figure.facecolor': 'white',
    'savefig.dpi': 144,
    # Text in an SVG stays text, and the same numbers give the same file.
    'svg.fonttype': 'none',
    'svg.hashsalt': 'fusion_jax',
  }
