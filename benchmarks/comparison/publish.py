"""Puts a comparison into the guide."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.comparison.figure import FIGURES, draw
from benchmarks.comparison.recipe import Recipe
from benchmarks.comparison.tables import Table, first_of
from fusion_jax.errors import InputError
from fusion_jax.figures import as_svg
from fusion_jax.files import write_whole

_BEGIN = '<!-- comparison of schemes: {} -->'
_END = '<!-- end of the comparison -->'
# The corpus that the figures are of.
_SHOWN = 'multi30k'


def publish(
  root: Path,
  recipe: Recipe,
  tables: Sequence[Table],
  text: str,
  of_steps: Mapping[str, Mapping[str, float]],
) -> None:
  """Puts tables into docs/comparison_tables.md.

  Of those of Multi30k the first of each kind is drawn.

  Args:
    root: The folder of the project.
    recipe: Of the comparison.
    tables: Of it.
    text: Of all tables, as from `report`.
    of_steps: Times of steps, as from `costs`.
  """
  put_into(root / 'docs' / 'comparison_tables.md', recipe.corpus, text)
  if recipe.corpus != _SHOWN:
    return
  for kind, name in FIGURES.items():
    first = first_of(tables, kind)
    if first is not None:
      write_whole(root / 'docs' / name, as_svg(draw(first, of_steps)))


def put_into(path: Path, name: str, text: str) -> None:
  """Replaces what stands between the markers of a name in a file."""
  if not path.is_file():
    raise InputError(f'{path}: no such file')
  marker = _BEGIN.format(name)
  before, begin, rest = path.read_text(encoding='utf-8').partition(marker)
  _, end, after = rest.partition(_END)
  if not (begin and end):
    raise InputError(f'{path}: must have {marker} and then {_END}')
  write_whole(path, f'{before}{begin}\n\n{text}\n{end}{after}'.encode())
