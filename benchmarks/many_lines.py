"""Translate very many lines: their order, the memory, and an interruption.

    python -m benchmarks.many_lines [--lines=1000000]

A tiny model translates 500 short lines, and then, greedily, lines that are
drawn from them. The exit code is 1 if a line is missing or out of order, if the
resident memory at the end is more than 5 % above that after 100,000 lines, or
if a SIGTERM in the middle of a second translation leaves a file. Linux only: it
reads /proc.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import RESULTS, circumstances, log, table, write_results
from benchmarks.serving import ROOT
from benchmarks.tiny_run import TINY
from fusion_jax.errors import CheckFailed
from fusion_jax.runs.kept_corpus import read_validation
from fusion_jax.startup import one_line_errors

_TRAINING = TINY | {'training.steps': 400, 'training.log_every': 200}
_DISTINCT, _WORDS, _LOOK_EVERY, _SETTLED = 500, 3, 50_000, 100_000
_MOST_GROWTH = 1.05
_LONGEST = '--max_length_ratio=1', '--max_length_extra=2'


class Look(NamedTuple):
  """One look: lines that came out, MiB of resident memory, seconds."""

  lines: int
  resident: float
  seconds: float


def decode(folder: Path, source: Path, *flags: str) -> subprocess.Popen:
  """Start a greedy translation of a file; translations come on stdout."""
  command = [sys.executable, 'decode.py', f'--workdir={folder / "run"}']
  return subprocess.Popen(
    [*command, f'--input={source}', '--beam_size=1', *_LONGEST, *flags],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=(folder / 'decode.txt').open('w'),
    text=True,
  )


def train(folder: Path) -> None:
  """Train the tiny model."""
  flags = _TRAINING | {'data.prepared': folder / 'prepared'}
  subprocess.run(
    [
      sys.executable,
      'train.py',
      '--config=configs/quickstart.py',
      f'--workdir={folder / "run"}',
      *(f'--config.{name}={value}' for name, value in flags.items()),
    ],
    cwd=ROOT,
    check=True,
    stderr=(folder / 'train.txt').open('w'),
  )


def short_lines(folder: Path) -> list[str]:
  """The beginnings of lines of the validation text, each once."""
  pairs = read_validation(folder / 'run', 'en-de')
  short = (' '.join(source.split()[:_WORDS]) for source, _ in pairs)
  return list(dict.fromkeys(short))[:_DISTINCT]


def translations(folder: Path, source: Path) -> list[str]:
  """The translations of a small file."""
  process = decode(folder, source)
  found, _ = process.communicate()
  if process.returncode:
    raise CheckFailed(f'decode.py: {(folder / "decode.txt").read_text()}')
  return found.splitlines()


def looks(process: subprocess.Popen, expected: Sequence[str]) -> Iterator[Look]:
  """Compare all lines as they come, and look at the memory now and then.

  Raises:
    CheckFailed: a line is another or missing, or there are too many.
  """
  begin, count = time.monotonic(), 0
  for count, line in enumerate(process.stdout, start=1):
    if count > len(expected) or line != f'{expected[count - 1]}\n':
      raise CheckFailed(f'line {count:,}: {line!r} was not expected')
    if count % _LOOK_EVERY == 0:
      yield Look(count, _resident(process.pid), time.monotonic() - begin)
  if process.wait() or count != len(expected):
    raise CheckFailed(f'{count:,} lines, exit code {process.returncode}')


def _resident(process: int) -> float:
  status = Path(f'/proc/{process}/status').read_text().splitlines()
  (line,) = (line for line in status if line.startswith('VmRSS:'))
  return int(line.split()[1]) / 1024


def interrupt(folder: Path, source: Path) -> int:
  """Stop a translation into a file with SIGTERM; its exit code.

  Raises:
    CheckFailed: it left a file.
  """
  place = folder / 'output'
  place.mkdir()
  process = decode(folder, source, f'--output={place / "translations.txt"}')
  while process.poll() is None and not any(
    path.stat().st_size for path in place.iterdir()
  ):
    time.sleep(0.1)
  process.terminate()
  code = process.wait()
  left = [path.name for path in place.iterdir()]
  if left or not code:
    raise CheckFailed(f'SIGTERM: exit code {code}, and {left} are left')
  return code


@one_line_errors
def main() -> None:
  """Train, translate, print."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--lines', type=int, default=1_000_000)
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    train(folder)
    distinct = short_lines(folder)
    source = folder / 'source.txt'
    source.write_text(''.join(f'{line}\n' for line in distinct))
    each = dict(zip(distinct, translations(folder, source), strict=True))
    drawn = random.Random(0).choices(distinct, k=arguments.lines)
    source.write_text(''.join(f'{line}\n' for line in drawn))
    process = decode(folder, source)
    found = []
    try:
      for look in looks(process, [each[line] for line in drawn]):
        log(f'{look.lines:,} lines, {look.resident:,.0f} MiB')
        found.append(look)
    finally:
      process.kill()
    code = interrupt(folder, source)
  _tell(found, len(set(each.values())), code)


def _tell(found: Sequence[Look], distinct: int, code: int) -> None:
  rows = [(f'{a:,}', f'{b:,.0f}', f'{a / c:,.0f}') for a, b, c in found]
  print(table(('lines', 'MiB resident', 'lines per second'), rows))
  settled = next(look for look in found if look.lines >= _SETTLED)
  growth = found[-1].resident / settled.resident
  print(
    f'{found[-1].lines:,} lines in order, {distinct} distinct translations; '
    f'memory {growth:.3f} of that after {settled.lines:,}; SIGTERM: exit code '
    f'{code}, no file left'
  )
  results = {'looks': [look._asdict() for look in found], 'growth': growth}
  write_results(RESULTS / 'many_lines.json', circumstances() | results)
  if growth > _MOST_GROWTH:
    raise CheckFailed(f'the memory grew to {growth:.3f}')


if __name__ == '__main__':
  sys.exit(main())
