"""Results of finished runs: a JSON file each, and its translations.

FOLDER/PHASE/NORM/SCHEME-SEED.json, and SCHEME-SEED.TEST.txt.gz beside it. The
JSON file is written last: where it is, the run is finished.
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, write_results
from benchmarks.comparison.plan import Run
from benchmarks.comparison.recipe import RECIPE, read
from fusion_jax.errors import InputError
from fusion_jax.evaluation.systems import read_file
from fusion_jax.files import write_whole


class Results:
  """The results of one recipe in a folder; it has a digest for each norm."""

  def __init__(self, folder: Path, digests: Mapping[str, str]):
    """Reads what is there."""
    self._folder, self._digests = folder, digests
    self._found = {
      path.relative_to(folder).as_posix().removesuffix('.json'): _read(
        path, digests
      )
      for path in sorted(folder.rglob('[!.]*.json'))
    }

  def __contains__(self, run: Run) -> bool:
    return run.name in self._found

  def __getitem__(self, run: Run) -> dict[str, Any]:
    return self._found[run.name]

  def __iter__(self) -> Iterator[dict[str, Any]]:
    return iter(self._found.values())

  def add(
    self,
    run: Run,
    numbers: dict[str, Any],
    translations: Mapping[str, Sequence[str]],
  ) -> None:
    """Writes the results of a finished run."""
    path = self._folder / f'{run.name}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    for test, lines in translations.items():
      text = ''.join(f'{line}\n' for line in lines)
      packed = gzip.compress(text.encode(), mtime=0)
      write_whole(self._translations(run, test), packed)
    digest = self._digests[run.norm]
    numbers = {'recipe': digest, **_identity(run), **numbers}
    write_results(path, numbers)
    self._found[run.name] = numbers

  def translations(self, run: Run, test: str) -> tuple[str, ...]:
    """The translations of a test set by a finished run."""
    return read_file(str(self._translations(run, test))).lines

  def _translations(self, run: Run, test: str) -> Path:
    return self._folder / f'{run.name}.{test}.txt.gz'


def from_scratch(corpus: str, norm: str = 'pre') -> list[dict[str, Any]]:
  """Read the saved runs from scratch of a norm, the plain model's first."""
  folder = RESULTS / 'comparison' / corpus
  return [
    found
    for found in Results(folder, read(RECIPE, corpus).digests())
    if found['norm'] == norm and found['phase'] in ('plain', 'scratch')
  ]


def _identity(run: Run) -> dict[str, Any]:
  names = 'phase', 'norm', 'scheme', 'seed'
  return {name: getattr(run, name) for name in names}


def _read(path: Path, digests: Mapping[str, str]) -> dict[str, Any]:
  try:
    numbers = json.loads(path.read_text())
    found, digest = numbers['recipe'], digests[numbers['norm']]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise InputError(f'{path}: not a result of a run: {error!r}') from None
  if found != digest:
    raise InputError(
      f'{path}: of recipe {found[:12]}, not of {digest[:12]} as asked for; '
      'give its recipe by --recipe, or another folder by --results'
    )
  return numbers
