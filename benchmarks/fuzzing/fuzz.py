"""Feed one reader with inputs that libFuzzer makes from its coverage.

    python -m benchmarks.fuzzing.fuzz FOLDER READER SECONDS

FOLDER is that of `readers.made`; the inputs that reached something new and the
exceptions that were no InputError are put beside it. Ends with libFuzzer's
statistics on stderr.
"""

import hashlib
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=['fusion_jax']):
  from benchmarks.fuzzing.readers import READERS, Reader
  from fusion_jax.errors import InputError

# Of one input, in seconds and MiB.
_TIMEOUT, _MEMORY = 30, 8_192


def write_seeds(folder: Path, name: str) -> Path:
  """Begin the inputs of a reader with files that it likes."""
  reader = READERS[name]
  where = folder.parent / 'inputs' / name
  where.mkdir(parents=True, exist_ok=True)
  seeds = reader.seeds or ((folder / reader.file).read_bytes(),)
  for number, seed in enumerate(seeds):
    (where / f'seed-{number}').write_bytes(seed)
  return where


def one_input(
  folder: Path, reader: Reader, findings: Path
) -> Callable[[bytes], None]:
  """What reads one input, and writes down what is no InputError."""
  path = folder / reader.file

  def read(content: bytes) -> None:
    path.write_bytes(content)
    try:
      reader.read(folder)
    except InputError as error:
      if '\n' in str(error):
        _write_down(findings, content)
    except Exception:
      _write_down(findings, content)

  return read


def _write_down(findings: Path, content: bytes) -> None:
  """An exception by its place, so that each is kept once."""
  frames = traceback.extract_tb(sys.exc_info()[2])
  ours = [one for one in frames if 'fusion_jax' in one.filename] or frames
  place = f'{sys.exc_info()[0]} {ours[-1].filename} {ours[-1].lineno}'
  name = hashlib.sha256(place.encode()).hexdigest()[:8]
  findings.mkdir(parents=True, exist_ok=True)
  if not (findings / f'{name}.txt').exists():
    (findings / f'{name}.input').write_bytes(content)
    (findings / f'{name}.txt').write_text(traceback.format_exc())


def main() -> None:
  folder, name, seconds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
  logging.disable()
  inputs = write_seeds(folder, name)
  findings = folder.parent / 'findings' / name
  flags = [
    f'-max_total_time={seconds}',
    f'-timeout={_TIMEOUT}',
    f'-rss_limit_mb={_MEMORY}',
    f'-artifact_prefix={findings}-',
    '-print_final_stats=1',
    '-verbosity=0',
    str(inputs),
  ]
  findings.parent.mkdir(exist_ok=True)
  read = one_input(folder, READERS[name], findings)
  atheris.Setup([sys.argv[0], *flags], read)
  atheris.Fuzz()


if __name__ == '__main__':
  main()
