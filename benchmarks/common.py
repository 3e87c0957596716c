"""What the benchmarks share: flags, results, tables, starting programs."""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving import ROOT
from fusion_jax import tables
from fusion_jax.files import write_whole
from fusion_jax.runs.directory import read_metrics

RESULTS = ROOT / 'benchmarks' / 'results'
PEERS_PYTHON = ROOT / '.venv-peers' / 'bin' / 'python'
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'grain', 'numpy')


def data_of(module: str) -> dict[str, Any]:
  """What stands in the TOML file beside a module, given its file."""
  return tomllib.loads(Path(module).with_suffix('.toml').read_text())


def make_parser(
  text: str | None, output: Path | None = None
) -> argparse.ArgumentParser:
  """A parser with a text as it stands, and --output if it has a default."""
  parser = argparse.ArgumentParser(
    description=text, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  if output:
    parser.add_argument('--output', type=Path, default=output)
  return parser


def as_flags(values: Mapping[str, Any], prefix: str = '') -> list[str]:
  """--NAME=VALUE of each."""
  return [f'--{prefix}{name}={value}' for name, value in values.items()]


def circumstances() -> dict[str, Any]:
  return {
    'date': datetime.datetime.now().astimezone().isoformat(timespec='seconds'),
    'cpu': _cpu_model(),
    'cores': os.cpu_count(),
    'platform': platform.platform(),
    'python': platform.python_version(),
    **{name: importlib.metadata.version(name) for name in _PACKAGES},
  }


def write_results(path: Path, results: Mapping[str, Any]) -> None:
  """Writes a JSON file; it is whole or not there."""
  path.parent.mkdir(parents=True, exist_ok=True)
  write_whole(path, f'{json.dumps(results, indent=1)}\n'.encode())


def resume(path: Path, settings: dict[str, Any], fresh: bool) -> dict[str, Any]:
  """The unfinished results of the same settings, or empty ones."""
  if path.exists() and not fresh:
    results = json.loads(path.read_text())
    if results.get('settings') == settings:
      return results
  return circumstances() | {'settings': settings, 'rounds': {}}


def log(message: str) -> None:
  print(message, file=sys.stderr, flush=True)


def spread(values: Sequence[float]) -> dict[str, float]:
  return {
    'median': statistics.median(values),
    'min': min(values),
    'max': max(values),
  }


def cells(
  values: Mapping[str, float], form: str = ',.0f', scale: float = 1
) -> tuple[str, ...]:
  """Those of `spread` for a table."""
  return tuple(
    format(scale * values[key], form) for key in ('median', 'min', 'max')
  )


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  """A table in Markdown, all but its first column on the right."""
  lines = [list(map(str, row)) for row in rows]
  return tables.table('markdown', header, lines, numeric=True)


def start(*command: str) -> str:
  """Runs Python in the root of the repository, and gives what it prints.

  What interrupts this program ends the other by SIGTERM, and waits for it.
  """
  with (
    _exit_on_sigterm(),
    subprocess.Popen(
      [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process,
  ):
    try:
      answer, _ = process.communicate()
    except BaseException:
      process.terminate()
      process.communicate()
      raise
  if process.returncode:
    raise subprocess.CalledProcessError(
      process.returncode, process.args, answer
    )
  return answer


def metrics(workdir: Path, kind: str) -> list[dict[str, Any]]:
  """The whole lines of a kind in a run's metrics.jsonl."""
  rows = read_metrics(workdir / 'metrics.jsonl')
  return [row for row in rows if row['kind'] == kind]


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
  """SIGTERM raises SystemExit, as Ctrl-C raises KeyboardInterrupt.

  Only while another program runs: where JAX is at work, its callbacks may
  swallow the exception.
  """
  before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


def _cpu_model() -> str:
  """As lscpu names it."""
  info = Path('/proc/cpuinfo')
  lines = info.read_text().splitlines() if info.exists() else []
  names = [
    line.split(':', 1)[1].strip() for line in lines if 'model name' in line
  ]
  return names[0] if names else platform.processor()
