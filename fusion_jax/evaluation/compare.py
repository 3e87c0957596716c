r"""Compare systems that translated the same text.

    fusion-jax compare --source=FILE --reference=FILE \
        --system=base=base.txt --system=em=em1.txt,em2.txt --output=DIR

A system is a name and one or more files of translations, one per seed. A run
directory may take the place of a file: it translates the source with its own
decoding settings, into DIR/translations. Files may be compressed (.gz, .bz2,
.xz).

DIR/compare.md, compare.json, compare.png and compare.svg contain BLEU, chrF and
TER with their signatures; sacreBLEU's paired bootstrap and approximate
randomisation against the baseline; the sign test of Collins et al. 2005;
Welch's t-test over seeds; BLEU by source length, F1 by word frequency; and the
sentences that differ most. The scores are also printed to stdout, as a
table with --format.
"""

import argparse
import json
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from fusion_jax.bounds import Positive, number
from fusion_jax.cli.text_io import open_input, read_lines, split_paths
from fusion_jax.config.decoding import BleuTokenizer
from fusion_jax.config.flags import command_parser, parse_arguments
from fusion_jax.data.tokenizer import log_unreachable
from fusion_jax.errors import InputError
from fusion_jax.evaluation import TextFile, Texts
from fusion_jax.files import write_errors, write_whole
from fusion_jax.runs.directory import check_output, read_config, read_tokenizers
from fusion_jax.startup import one_line_errors, run_program, start_logging
from fusion_jax.tables import add_format_flag

if TYPE_CHECKING:
  from fusion_jax.runs.loading import TrainedModel

logger = logging.getLogger(__name__)


def read_texts(arguments: argparse.Namespace) -> Texts:
  """Read all files, then translate with the run directories."""
  systems, baseline = _systems(arguments.system), arguments.baseline
  if baseline:
    if baseline not in systems:
      raise InputError(
        f'--baseline={baseline}: no such system; there are {", ".join(systems)}'
      )
    systems = {baseline: systems[baseline]} | systems
  paths = [path for seeds in systems.values() for path in seeds]
  runs = list(filter(os.path.isdir, paths))
  source = read_file(arguments.source)
  references = tuple(map(read_file, arguments.reference))
  texts = {path: read_file(path) for path in paths if path not in runs}
  check_lines(source, [*references, *texts.values()])
  train = arguments.train_target
  languages = arguments.source_language, arguments.target_language
  folder = arguments.output / 'translations'
  with write_errors(arguments.output):
    (folder if runs else arguments.output).mkdir(parents=True, exist_ok=True)
  for name, seeds in systems.items():
    for seed, path in enumerate(seeds, start=1):
      if path in runs:
        file = folder / f'{name}.{seed}.txt'
        texts[path] = translation_of(path, source.lines, languages, file)
        _, tokenizer = read_tokenizers(Path(path))
        for text in references:
          log_unreachable(text.lines, tokenizer, f'{path}, {text.path}')
  if runs:
    languages = _languages({path: texts[path] for path in runs})
  return Texts(
    source,
    references,
    {
      name: tuple(texts[path] for path in seeds)
      for name, seeds in systems.items()
    },
    languages,
    read_file(train) if train else None,
    arguments.bleu_tokenizer or _bleu_tokenizer(runs),
  )


def _systems(flags: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """Read `NAME=PATH[,PATH]` of each --system."""
  if not flags:
    raise InputError('no system to compare: give --system NAME=FILE[,FILE]')
  systems: dict[str, tuple[str, ...]] = {}
  for flag in flags:
    name, _, listed = flag.partition('=')
    paths = tuple(split_paths(listed))
    if not (name and all(paths)) or '/' in name:
      raise InputError(
        f'--system {flag}: must be NAME=FILE[,FILE], the name without /'
      )
    if name in systems or len({*paths}) < len(paths):
      raise InputError(
        f'--system {flag}: gives the system or a file twice; files of other '
        f'seeds go into one flag: {name}=FILE,FILE'
      )
    systems[name] = paths
  return systems


def read_file(path: str) -> TextFile:
  """Read a text."""
  with open_input(path) as file:
    lines = tuple(line.rstrip() for line in read_lines(file, path))
  if not lines:
    raise InputError(f'{path}: the file is empty')
  return TextFile(path, lines)


def check_lines(source: TextFile, others: Sequence[TextFile]) -> None:
  """Refuse files that do not match the source line by line."""
  for other in others:
    if len(other.lines) != len(source.lines):
      raise InputError(
        f'{other.path} has {len(other.lines):,} lines but {source.path} has '
        f'{len(source.lines):,}: line i of one must translate line i of the '
        'other'
      )


def _bleu_tokenizer(runs: Sequence[str]) -> str:
  """Return the tokenizer that the configs of the runs name, '' for none."""
  names = {read_config(Path(run)).decoding.bleu_tokenizer for run in runs}
  if len(names) > 1:
    raise InputError(
      f'the configs of {", ".join(runs)} name different tokenizers of BLEU; '
      'give --bleu_tokenizer'
    )
  return names.pop() if names else ''


def _languages(runs: Mapping[str, TextFile]) -> tuple[str, str]:
  directions = {text.languages for text in runs.values()}
  if len(directions) > 1:
    raise InputError(
      f'the runs {", ".join(runs)} translate in different directions'
    )
  return directions.pop()


def translation_of(
  run: str, lines: Sequence[str], languages: tuple[str, str], path: Path
) -> TextFile:
  """Translate with the run's own decoding settings, and write the lines."""
  # Imported only where it is needed, because JAX loads slowly.
  from fusion_jax.decoding.ensemble import in_direction
  from fusion_jax.runs.loading import load_run

  model = in_direction(load_run(run), run, *languages)
  logger.info('%s, step %d: translates %d lines', run, model.step, len(lines))
  text = ''.join(f'{line}\n' for line in translate(model, lines))
  write_whole(path, text.encode())
  data = model.config.data
  return read_file(str(path))._replace(
    run=f'{run}, step {model.step}',
    languages=(data.source_language, data.target_language),
  )


def translate(run: 'TrainedModel', lines: Sequence[str]) -> list[str]:
  """Translate with the search of the run's config, and log the progress."""
  from fusion_jax.decoding.translate import Translator
  from fusion_jax.startup import Progress

  progress = Progress(len(lines), 'lines')
  translator = Translator(run, run.config.decoding, on_progress=progress.add)
  translations = list(translator.translate(lines))
  progress.finish()
  return translations


# With more processes, most would wait: there is not enough work.
_MOST_JOBS = 8


def _parser() -> argparse.ArgumentParser:
  parser = command_parser(__doc__, 'compare')
  add = parser.add_argument
  add('--source', required=True, help='the text that was translated')
  add(
    '--reference',
    action='append',
    required=True,
    help='its translation; may be given several times',
  )
  add(
    '--system',
    action='append',
    default=[],
    help='NAME=FILE[,FILE], files or run directories, one of each seed',
  )
  add('--baseline', default='', help='a name; default: the first system')
  add('--output', type=Path, required=True, help='a folder')
  for side in ('source', 'target'):
    add(
      f'--{side}_language',
      default='',
      help='decides what a word is; default: that of the runs, else words '
      'with spaces between',
    )
  add(
    '--bleu_tokenizer',
    choices=get_args(BleuTokenizer),
    default='',
    help="by sacreBLEU's name; default: that of the runs or of the language",
  )
  add_format_flag(parser)
  _add_numbers(parser)
  return parser


def _add_numbers(parser: argparse.ArgumentParser) -> None:
  add, positive = parser.add_argument, number(Positive)
  add('--samples', type=positive, default=1000, help='of the bootstrap')
  add('--trials', type=positive, default=10_000, help='of the randomisation')
  add(
    '--length_bounds',
    type=_bounds,
    default='15,30,45',
    help='the longest sources of all buckets but the last, in words; default: '
    'those of Dou et al. 2018, Fig. 4',
  )
  add(
    '--train_target',
    default='',
    help='a text in which the frequencies of words are counted; default: the '
    'first reference',
  )
  add(
    '--jobs',
    type=positive,
    default=min(os.cpu_count() or 1, _MOST_JOBS),
    help='processes; default: one for each core, and at most 8',
  )


def _bounds(text: str) -> list[int]:
  """Read ascending whole numbers above 0, separated by commas."""
  parts = text.split(',')
  whole = all(re.fullmatch('[0-9]{1,9}', part) for part in parts)
  bounds = [int(part) for part in parts] if whole else [0]
  if bounds[0] < 1 or bounds != sorted(set(bounds)):
    raise argparse.ArgumentTypeError(
      'must be whole numbers above 0, ascending, with commas between, as '
      f'15,30,45, got {text!r}'
    )
  return bounds


@one_line_errors
def main(argv: list[str]) -> None:
  """Compare the systems, write the files and print the scores."""
  arguments = parse_arguments(argv, _parser())
  start_logging()
  logging.getLogger('sacrebleu').setLevel(logging.WARNING)
  # Imported after the flags are read, because these modules load slowly and
  # every process loads this file.
  from fusion_jax import figures
  from fusion_jax.evaluation import comparison
  from fusion_jax.evaluation.significance import in_processes

  check_output(arguments.output)
  texts = read_texts(arguments)
  begin = time.monotonic()
  with in_processes(arguments.jobs) as run:
    numbers = comparison.compare(texts, arguments, run)
  logger.info('compared in %.1f s', time.monotonic() - begin)
  text = json.dumps(numbers, ensure_ascii=False, indent=1, allow_nan=False)
  folder = arguments.output
  write_whole(folder / 'compare.json', f'{text}\n'.encode())
  figures.save(comparison.draw(numbers), folder / 'compare')
  write_whole(folder / 'compare.md', comparison.report(numbers).encode())
  logger.info('written: %s', folder / 'compare.md')
  if arguments.format:
    print(comparison.scores_table(numbers, arguments.format))
  else:
    for name in numbers['systems']:
      print(comparison.scores_line(numbers, name))


if __name__ == '__main__':
  run_program(main)
