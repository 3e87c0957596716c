"""Test a trained run on its own test split, and show what its fusion learned.

python -m fusion_jax.tools.quickstart --workdir=runs/quickstart
"""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import (
  add_direction_flags,
  command_parser,
  parse_arguments,
)
from fusion_jax.errors import InputError
from fusion_jax.runs.directory import read_metrics
from fusion_jax.startup import one_line_errors, run_program, start_logging

_SHOWN = 5
_INDICES = re.compile(r'(_\d+)+$')


@one_line_errors
def main(argv: list[str]) -> None:
  parser = command_parser(__doc__)
  parser.add_argument('--workdir', type=Path, required=True)
  add_direction_flags(parser)
  flags = parse_arguments(argv, parser)
  workdir = flags.workdir
  start_logging()
  # Imported after logging starts, else JAX's libraries set up their own.
  from fusion_jax.data.prepare import prepare
  from fusion_jax.decoding.ensemble import in_direction
  from fusion_jax.decoding.translate import Translator
  from fusion_jax.metrics import corpus_scores
  from fusion_jax.runs.loading import load_run

  run = load_run(workdir)
  corpus = prepare(run.config.data)
  if not corpus.has_split('test'):
    raise InputError(f'{workdir}: its config names no data.test')
  languages = flags.source_language, flags.target_language
  run = in_direction(run, str(workdir), *languages)
  data = run.config.data
  direction = f'{data.source_language}-{data.target_language}'
  sources, references = corpus.split('test', direction).texts()
  translations = list(Translator(run, run.config.decoding).translate(sources))
  scores = corpus_scores(translations, references, run.target_words)
  print(scores.report)
  _print_fusion(run.config, workdir)
  stride = max(len(sources) // _SHOWN, 1)
  shown = zip(sources, translations, references, strict=True)
  for lines in itertools.islice(shown, 0, stride * _SHOWN, stride):
    print('\nsource       {}\ntranslation  {}\nreference    {}'.format(*lines))
  print(f'\nThe run directory is {workdir}. Try it on a line of your own:')
  print('  source .venv/bin/activate')
  print(f"  echo '{sources[0]}' | fusion-jax decode --workdir={workdir}")


def _print_fusion(config: ExperimentConfig, workdir: Path) -> None:
  """Print the numbers that the fusions logged at the last validation."""
  model = config.model
  print(f'\nfusion       encoder {model.encoder.fusion}, ', end='')
  print(f'decoder {model.decoder.fusion}; at the last validation, from the')
  print('             lowest layer or group up:')
  rows = read_metrics(workdir / 'metrics.jsonl')
  logged = [row for row in rows if row['kind'] == 'fusion']
  for name, values in learned(logged[-1] if logged else {}).items():
    print(f'{name:36}', *(f'{value:6.3f}' for value in values))


def learned(row: Mapping[str, Any]) -> dict[str, list[float]]:
  """Return the arrays of a line of telemetry by their names, flattened."""
  arrays: dict[str, list[float]] = {}
  for name, value in row.items():
    if '/' in name:
      arrays.setdefault(_INDICES.sub('', name), []).append(value)
  return arrays


if __name__ == '__main__':
  run_program(main)
