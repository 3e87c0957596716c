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
sentences that differ most. The scores are also printed to stdout.
"""

import argparse
import json
import logging
import os
import re
import time
from pathlib import Path
from typing import get_args

from fusion_jax.bounds import Positive, number
from fusion_jax.config.decoding import BleuTokenizer
from fusion_jax.config.flags import parse_arguments
from fusion_jax.startup import one_line_errors, run_program, start_logging

logger = logging.getLogger(__name__)

# With more processes, most would wait: there is not enough work.
_MOST_JOBS = 8


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='fusion-jax compare',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
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
  from fusion_jax.evaluation.systems import read_texts
  from fusion_jax.files import write_whole
  from fusion_jax.runs.directory import check_output

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
  for name in numbers['systems']:
    print(comparison.scores_line(numbers, name))


if __name__ == '__main__':
  run_program(main)
