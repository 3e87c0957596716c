"""Fuzz the readers of files that come from outside, guided by coverage.

    pip install -r requirements-fuzz.txt
    python -m benchmarks.fuzz_readers --minutes=60 --output=DIR

Each reader gets the same share of the time, in a process of its own. An
exception that is no InputError, or one of several lines, is kept in
DIR/findings with its input, and so is an input that takes too long or too much
memory; the exit code is then 1. A second run continues with the inputs of the
first.
"""

import bz2
import gzip
import hashlib
import json
import logging
import lzma
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import atheris

# Only modules that are imported here tell libFuzzer what an input reaches.
with atheris.instrument_imports(include=['fusion_jax']):
  from benchmarks import common
  from benchmarks.serving import ROOT
  from fusion_jax.analysis.tags import read_words
  from fusion_jax.cli.line_formats import open_json, open_text
  from fusion_jax.config.flags import load_config, parse_arguments
  from fusion_jax.config.presets import changed
  from fusion_jax.config.serialization import to_json
  from fusion_jax.data.corpora import count_lines, read_files
  from fusion_jax.data.prepare import prepare
  from fusion_jax.data.prepared import PreparedCorpus
  from fusion_jax.data.tokenizer import Tokenizer
  from fusion_jax.errors import CheckFailed, InputError
  from fusion_jax.evaluation.contrastive import read_items
  from fusion_jax.runs import directory
  from fusion_jax.startup import one_line_errors

# Of one input, in seconds and MiB.
_TIMEOUT, _MEMORY = 30, 8_192
_TINY = {
  'data.embedded_pairs': 200,
  'data.tokenizer.vocabulary_size': 250,
  'data.sampling.source_alpha': 0.1,
}
_TEXT = 'Ein Hund läuft.\nEine Katze\tsitzt\u2028da.\n\n'.encode()
_ITEM = {'source': 'a dog', 'reference': 'ein Hund', 'contrastive': ['x', 'y']}
_ERROR = {'contrastive': 'eine Hund', 'type': 'gender', 'distance': 3}
_GROUPED = {'source': 'a', 'reference': 'ein', 'errors': [_ERROR]}
_CONLLU = b'# text = Hi you\n1\tHi\thi\tINTJ\t_\t_\t0\troot\t_\t_\n\n'
_LOCK = b'{"host": "a", "process": 1, "since": "2026"}\n'
_JSON_LINES = (
  b'{"source": "a", "target": "b", "x": [1, null]}\n{"source": ""}\n'
)
_METRICS = (
  b'{"kind": "train", "step": 100, "loss": 4.5, "seconds": 1.25}\n'
  b'{"kind": "valid", "step": 200, "loss": 4.25, "bleu": 11.0, "best": null}'
)


class Reader(NamedTuple):
  """What reads a file below the folder that `make_files` fills.

  It gets the folder. Without `seeds` it begins with the file as it is there.
  """

  file: str
  read: Callable[[Path], Any]
  seeds: tuple[bytes, ...] = ()


class Fuzzed(NamedTuple):
  """Inputs that were read, those that reached something new, and findings."""

  inputs: int
  kept: int
  findings: tuple[str, ...]


def make_files(folder: Path) -> None:
  """Fills a folder with a prepared corpus and what a run directory has."""
  tiny = _TINY | {'data.prepared': str(folder / 'prepared')}
  config = changed(load_config('configs/quickstart.py'), tiny)
  shutil.copytree(prepare(config.data).directory, folder / 'corpus')
  shutil.copytree(folder / 'corpus', folder / 'run' / 'corpus')
  (folder / 'run' / 'config.json').write_text(to_json(config))


def _consume(lines: Iterable[Any]) -> None:
  for _ in lines:
    pass


def _pairs(path: Path) -> None:
  _consume(read_files(path, path))
  count_lines(path, path)


def _lines(path: Path) -> None:
  with open_text(str(path)) as lines:
    _consume(lines)


def _json_lines(path: Path) -> None:
  with open_json(str(path), ('source',)) as lines:
    _consume(lines)


def _tokenizer(path: Path) -> None:
  tokenizer = Tokenizer.from_file(path)
  tokenizer.decode(tokenizer.encode('Ein Hund läuft.'))


def _corpus(folder: Path) -> None:
  corpus = PreparedCorpus(folder / 'corpus')
  for name in corpus.report['splits']:
    split = corpus.split(name)
    for index in range(min(2, len(split))):
      _ = split[index]
      split.sample(index, seed=1)
    if name != 'train':
      split.texts()


def _lock(folder: Path) -> None:
  path = folder / 'run' / 'lock'
  content = path.read_bytes()
  with directory.locked(folder / 'run'):
    path.write_bytes(content)
    with directory.locked(folder / 'run'):
      pass


def _of_file(file: str, read: Callable[[Path], Any], *seeds: bytes) -> Reader:
  return Reader(file, lambda folder: read(folder / file), seeds)


_ITEMS = tuple(json.dumps([item]).encode() for item in (_ITEM, _GROUPED))
_PACKED = {'': bytes, '.gz': gzip.compress, '.bz2': bz2.compress}
_IN_CORPUS = {
  name: Reader(f'corpus/{name}', _corpus)
  for name in (
    *('report.json', 'settings.json'),
    *('valid.lengths.npy', 'valid.rows.npy'),
  )
}
READERS = {
  f'text{suffix}': _of_file(f'text{suffix}', _pairs, pack(_TEXT))
  for suffix, pack in (_PACKED | {'.xz': lzma.compress}).items()
} | {
  'lines': _of_file('lines', _lines, _TEXT),
  'JSON lines': _of_file('lines.jsonl', _json_lines, _JSON_LINES),
  'contrastive': _of_file('items.json', read_items, *_ITEMS),
  'CoNLL-U': _of_file(
    'words.conllu', lambda path: _consume(read_words(path)), _CONLLU
  ),
  'metrics': _of_file('metrics.jsonl', directory.read_metrics, _METRICS),
  'config': Reader(
    'run/config.json', lambda folder: directory.read_config(folder / 'run')
  ),
  'kept report': Reader(
    'run/corpus/report.json',
    lambda folder: directory.read_report(folder / 'run'),
  ),
  'lock': Reader('run/lock', _lock, (_LOCK,)),
  'tokenizer': _of_file('corpus/source.model', _tokenizer),
  **_IN_CORPUS,
  'records': Reader('corpus/parallel_text-valid.array_record-00000', _corpus),
}


def fuzz_one(folder: Path, name: str, seconds: int) -> None:
  """Feeds a reader with what libFuzzer makes; this ends the process."""
  reader, findings = READERS[name], folder.parent / 'findings' / name
  path, inputs = folder / reader.file, folder.parent / 'inputs' / name
  inputs.mkdir(parents=True, exist_ok=True)
  for number, seed in enumerate(reader.seeds or (path.read_bytes(),)):
    (inputs / f'seed-{number}').write_bytes(seed)

  def read(content: bytes) -> None:
    path.write_bytes(content)
    try:
      reader.read(folder)
    except Exception as error:
      if not isinstance(error, InputError) or '\n' in str(error):
        _write_down(findings, content)

  flags = {
    'max_total_time': seconds,
    'timeout': _TIMEOUT,
    'rss_limit_mb': _MEMORY,
    'artifact_prefix': f'{findings}-',
    'print_final_stats': 1,
    'verbosity': 0,
  }
  findings.parent.mkdir(exist_ok=True)
  options = [f'-{flag}={value}' for flag, value in flags.items()]
  atheris.Setup([sys.argv[0], *options, str(inputs)], read)
  atheris.Fuzz()


def _write_down(findings: Path, content: bytes) -> None:
  """An exception by its place, so that each is kept once."""
  frames = traceback.extract_tb(sys.exc_info()[2])
  ours = [frame for frame in frames if '/fusion_jax/' in frame.filename]
  last = (ours or frames)[-1]
  place = f'{sys.exc_info()[0]} {last.filename} {last.lineno}'
  name = hashlib.sha256(place.encode()).hexdigest()[:8]
  findings.mkdir(parents=True, exist_ok=True)
  if not (findings / f'{name}.txt').exists():
    (findings / f'{name}.input').write_bytes(content)
    (findings / f'{name}.txt').write_text(traceback.format_exc())


def fuzz(folder: Path, name: str, seconds: int) -> Fuzzed:
  """Fuzzes one reader in a process of its own, on a copy of the files."""
  work, findings = folder.parent / 'work', folder.parent / 'findings'
  shutil.rmtree(work, ignore_errors=True)
  shutil.copytree(folder, work)
  command = [sys.executable, '-m', 'benchmarks.fuzz_readers']
  command += [f'--folder={work}', f'--readers={name}', f'--seconds={seconds}']
  done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
  said = done.stderr.decode(errors='replace')
  (folder.parent / f'{name}.log').write_text(said)
  counted = re.search(r'number_of_executed_units: (\d+)', said)
  if done.returncode or not counted:
    findings.mkdir(exist_ok=True)
    (findings / f'{name}-ended.txt').write_text(said)
  files = [path for path in findings.glob(f'{name}*') if path.is_file()]
  files += findings.glob(f'{name}/*.txt')
  inputs = folder.parent / 'inputs' / name
  return Fuzzed(
    int(counted[1]) if counted else 0,
    len(list(inputs.iterdir())) if inputs.exists() else 0,
    tuple(sorted(map(str, files))),
  )


@one_line_errors
def main(argv: list[str]) -> None:
  parser = common.make_parser(__doc__)
  add = parser.add_argument
  add('--minutes', type=float, default=60.0)
  add('--output', type=Path, help='for files, inputs and findings')
  add('--readers', default=','.join(READERS))
  add('--folder', type=Path, help='fuzz one reader in this process')
  add('--seconds', type=int, help='with --folder')
  arguments = parse_arguments(argv, parser)
  names = arguments.readers.split(',')
  unknown = set(names) - READERS.keys()
  if unknown:
    raise InputError(f'--readers: not {", ".join(unknown)}; {list(READERS)}')
  logging.disable()
  if arguments.folder:
    fuzz_one(arguments.folder, *names, arguments.seconds)
  if not arguments.output:
    parser.error('give --output')
  folder = arguments.output.absolute() / 'files'
  if not folder.exists():
    folder.mkdir(parents=True)
    make_files(folder)
  seconds = round(60 * arguments.minutes / len(names))
  fuzzed = {}
  for number, name in enumerate(names, 1):
    common.log(f'{number} of {len(names)}: {name}, {seconds} s')
    fuzzed[name] = fuzz(folder, name, seconds)
  _report(arguments.minutes, fuzzed)


def _report(minutes: float, fuzzed: dict[str, Fuzzed]) -> None:
  counts = {name: result._asdict() for name, result in fuzzed.items()}
  common.write_results(
    common.RESULTS / 'fuzz_readers.json',
    common.circumstances() | {'minutes': minutes, 'readers': counts},
  )
  rows = [
    [name, f'{result.inputs:,}', result.kept, len(result.findings)]
    for name, result in fuzzed.items()
  ]
  print(common.table(('reader', 'inputs', 'kept', 'findings'), rows))
  print(f'{sum(result.inputs for result in fuzzed.values()):,} inputs')
  findings = [path for result in fuzzed.values() for path in result.findings]
  if findings:
    raise CheckFailed(f'{len(findings)} findings, the first: {findings[0]}')


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
