"""What the benchmarks share: flags, results, tables."""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving import ROOT

RESULTS = ROOT / 'benchmarks' / 'results'
PEERS_PYTHON = ROOT / '.venv-peers' / 'bin' / 'python'
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'grain', 'numpy')


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
  """Hardware, date and versions."""
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
  temporary = path.with_name(f'.{path.name}.{os.getpid()}')
  temporary.write_text(json.dumps(results, indent=1) + '\n')
  temporary.replace(path)


def resume(path: Path, settings: dict[str, Any], fresh: bool) -> dict[str, Any]:
  """The unfinished results of the same settings, or empty ones."""
  if path.exists() and not fresh:
    results = json.loads(path.read_text())
    if results.get('settings') == settings:
      return results
  return circumstances() | {'settings': settings, 'rounds': {}}


def log(message: str) -> None:
  """A line on stderr, at once."""
  print(message, file=sys.stderr, flush=True)


def spread(values: Sequence[float]) -> dict[str, float]:
  """Median, smallest and largest."""
  return {
    'median': statistics.median(values),
    'min': min(values),
    'max': max(values),
  }


def cells(
  found: Mapping[str, float], form: str = ',.0f', scale: float = 1
) -> tuple[str, ...]:
  """Those of `spread` for a table."""
  return tuple(
    format(scale * found[key], form) for key in ('median', 'min', 'max')
  )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """Left-aligned first column, right-aligned others."""
  lines = [list(map(str, row)) for row in (header, *rows)]
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
  return '\n'.join(
    '  '.join(
      cell.rjust(width) if index else cell.ljust(width)
      for index, (cell, width) in enumerate(zip(line, widths, strict=True))
    ).rstrip()
    for line in lines
  )


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A table for a page."""
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _cpu_model() -> str:
  """As lscpu names it."""
  info = Path('/proc/cpuinfo')
  lines = info.read_text().splitlines() if info.exists() else []
  names = [
    line.split(':', 1)[1].strip() for line in lines if 'model name' in line
  ]
  return names[0] if names else platform.processor()
