r"""How long a comparison of five systems takes, beside sacreBLEU's own.

    python -m benchmarks.compare_systems [--source=FILE --reference=FILE]

Five systems are the reference with random mistakes. Everything that the
program writes is in its time: the counts of BLEU, chrF and TER, 1,000 bootstrap
samples, 10,000 trials of randomisation, buckets, figure. sacreBLEU's command
line makes the bootstrap alone, in as many processes.
"""

import argparse
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, circumstances, log, table, write_results
from benchmarks.serving import ROOT
from fusion_jax.data.embedded import generate
from fusion_jax.evaluation.systems import check_lines, read_file
from fusion_jax.startup import one_line_errors

# Shares of words with a mistake: TER of 45 to 60, as translations have it.
_SHARES = 0.50, 0.48, 0.45, 0.42, 0.40
_MOVES = 2


def mistaken(lines: Sequence[str], share: float, seed: int) -> list[str]:
  """Lines with words replaced, left out and put in, and sequences moved.

  Args:
    lines: that have none.
    share: of the words that are changed.
    seed: of the draws.
  """
  draw = random.Random(seed)
  words = [word for line in lines for word in line.split()]

  def change(word: str) -> list[str]:
    if draw.random() >= share:
      return [word]
    other = draw.choice(words)
    return draw.choice([[other], [other], [], [word, other]])

  changed = []
  for line in lines:
    own = list(itertools.chain.from_iterable(map(change, line.split())))
    for _ in range(_MOVES):
      _move(own, draw)
    changed.append(' '.join(own))
  return changed


def _move(words: list[str], draw: random.Random) -> None:
  """Moves up to three words that follow one another."""
  if len(words) > 5:
    start = draw.randrange(len(words) - 3)
    end = start + draw.randrange(1, 4)
    moved, words[start:end] = words[start:end], []
    place = draw.randrange(len(words))
    words[place:place] = moved


def measured(command: Sequence[str]) -> dict[str, float]:
  """Runs Python with these arguments.

  Returns:
    Seconds, seconds of processor time, gigabytes of the largest process, and
    the load average of the machine at the end.

  Raises:
    RuntimeError: its exit code is not 0.
  """
  begin = time.monotonic()
  process = subprocess.Popen(
    [sys.executable, *command], cwd=ROOT, stdout=sys.stderr
  )
  _, status, usage = os.wait4(process.pid, 0)
  if status:
    raise RuntimeError(f'{" ".join(command)} failed')
  return {
    'seconds': time.monotonic() - begin,
    'processor_seconds': usage.ru_utime + usage.ru_stime,
    'gigabytes': usage.ru_maxrss / 2**20,
    'load': os.getloadavg()[0],
  }


def _texts(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
  if not arguments.source:
    pairs = generate('de', 'en', 'test', arguments.lines)
    sources, references = zip(*pairs, strict=True)
    return list(sources), list(references)
  source = read_file(arguments.source)
  reference = read_file(arguments.reference)
  check_lines(source, [reference])
  lines = slice(arguments.lines)
  return list(source.lines[lines]), list(reference.lines[lines])


def _write(path: Path, lines: Sequence[str]) -> str:
  path.write_text(''.join(f'{line}\n' for line in lines))
  return str(path)


def _compared(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
  sources, references = _texts(arguments)
  source = _write(folder / 'source', sources)
  reference = _write(folder / 'reference', references)
  files = [
    _write(folder / f'system{seed}', mistaken(references, share, seed))
    for seed, share in enumerate(_SHARES)
  ]
  jobs = arguments.jobs
  ours = ['-m', 'fusion_jax.evaluation.compare', f'--source={source}']
  ours += [f'--reference={reference}', f'--output={folder}', f'--jobs={jobs}']
  ours += [f'--system={Path(file).name}={file}' for file in files]
  theirs = ['-m', 'sacrebleu', reference, '-i', *files, '--paired-bs']
  theirs += ['-m', 'bleu', 'chrf', 'ter', f'--paired-jobs={jobs}']
  log('fusion_jax.evaluation.compare')
  found = {'lines': len(sources), 'fusion_jax': measured(ours)}
  if not arguments.alone:
    log('sacreBLEU')
    found['sacrebleu'] = measured([*theirs, '-f', 'text'])
  return found


@one_line_errors
def main(argv: list[str]) -> None:
  """Measures, prints the table and writes the results."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--source', default='', help='a text; default: the one in the package')
  add('--reference', default='', help='its translation')
  add('--lines', type=int, default=3003, help='at most so many, the first')
  add('--jobs', type=int, default=2, help='processes')
  add('--alone', action='store_true', help='without sacreBLEU')
  add('--output', type=Path, default=RESULTS / 'compare_systems.json')
  arguments = parser.parse_args(argv)
  with tempfile.TemporaryDirectory() as folder:
    found = _compared(arguments, Path(folder))
  settings = {
    'text': Path(arguments.source or 'embedded').name,
    'systems': len(_SHARES),
    'jobs': arguments.jobs,
  }
  write_results(
    arguments.output, circumstances() | {'settings': settings} | found
  )
  columns = 'seconds', 'processor_seconds', 'gigabytes', 'load'
  rows = [
    (name, *(f'{found[name][column]:.1f}' for column in columns))
    for name in ('fusion_jax', 'sacrebleu')
    if name in found
  ]
  print(table(('', *columns), rows))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
