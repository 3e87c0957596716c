"""Where the parts work, and how they start programs: one at a time."""

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import write_results
from benchmarks.programs import start
from fusion_jax.errors import CheckFailed

# Lines that say what ended a program.
_ERROR = re.compile(r'(error|failed|[\w.]*(Error|Exception)): .')


class Place(NamedTuple):
  """What all parts know.

  folder: of the results.
  data: the folder of Multi30k; None: there is none.
  tiny: sizes that a CPU does in seconds.
  device: of `benchmarks.acceleration.device`.
  keep_open: file descriptors that programs inherit.
  """

  folder: Path
  data: Path | None
  tiny: bool
  device: Mapping[str, Any]
  keep_open: tuple[int, ...] = ()

  def start(self, name: str, *command: str, **options: Any) -> str:
    """Start a program; as `benchmarks.programs.start`, within `options`."""
    with self.options(name, **options) as own:
      return start(*command, **own)

  @contextlib.contextmanager
  def options(
    self, name: str, *, compiles_anew: bool = False, **options: Any
  ) -> Iterator[dict[str, Any]]:
    """Give the options with which a program is started."""
    path = self.log(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('w') as errors:
      try:
        yield options | {
          'keep_open': self.keep_open,
          'errors': errors,
          'environment': self._environment(compiles_anew),
        }
      except subprocess.CalledProcessError as error:
        said = last_error(path.read_text(errors='replace'))
        code = error.returncode
        raise CheckFailed(f'{said or f"exit code {code}"}; {path}') from error

  def log(self, name: str) -> Path:
    """The file of what the programs of a piece say."""
    return self.folder / 'logs' / f'{name.replace(" ", "_")}.txt'

  def measured(self, part: str) -> dict[str, Any]:
    """What a part has put into its file."""
    path = self.folder / f'{part}.json'
    return json.loads(path.read_text()) if path.exists() else {}

  def add(self, part: str, name: str, value: Any) -> None:
    """Put something into the file of a part; it is whole at any moment."""
    path = self.folder / f'{part}.json'
    write_results(path, self.measured(part) | {name: value})

  def _environment(self, compiles_anew: bool) -> dict[str, str]:
    own = {
      'JAX_COMPILATION_CACHE_DIR': str(self.folder / 'compiled'),
      'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
      'JAX_ENABLE_COMPILATION_CACHE': str(not compiles_anew).lower(),
      # Else JAX ends a traceback by a remark.
      'JAX_TRACEBACK_FILTERING': 'off',
    }
    if self.device:
      own['JAX_PLATFORMS'] = jax_platforms(self.device)
      if self.device['platform'] != 'cpu':
        own['BENCHMARK_CORES'] = str(os.cpu_count())
    return os.environ | own


def jax_platforms(device: Mapping[str, Any]) -> str:
  """Return JAX_PLATFORMS: with it, no CPU takes the place of a GPU."""
  cuda = 'cuda' in device['runtime'].lower()
  first = 'cuda' if cuda else device['platform']
  return first if first == 'cpu' else f'{first},cpu'


def last_error(text: str) -> str:
  """Return the last line that names an error, else the last line."""
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  errors = [line for line in lines if _ERROR.match(line)]
  return (errors or lines or [''])[-1]
