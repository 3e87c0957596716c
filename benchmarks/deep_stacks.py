r"""Which deep Transformers train: post-norm against what was made for depth.

    python -m benchmarks.deep_stacks --data=DIR --workdir=DIR \
        [--depths=18+6,30+6,60+12] [--schemes=NAME,NAME] [--minutes=N] \
        [--steps=N] [--peak=RATE] [--warmup=N]

After Yang et al. (2022), Table VIII and section IV; docs/deep_stacks.md has the
results. The same command continues, also inside a training.
"""

import argparse
import itertools
import math
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import RESULTS, log, make_parser, resume, write_results
from benchmarks.deep_recipes import SCHEMES, layers_of
from benchmarks.deep_report import draw, report
from benchmarks.deep_verdict import exchanged_nll, nll, unigram_nll
from benchmarks.programs import measured_fields, metrics, train
from benchmarks.serving import ROOT, limit_cores
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config, parse_arguments
from fusion_jax.config.presets import changed
from fusion_jax.data.prepare import prepare
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.figures import as_svg
from fusion_jax.files import write_whole
from fusion_jax.startup import one_line_errors, start_logging

_FILE = 'benchmarks/deep_recipes.py'
_OUTPUT = RESULTS / 'deep_stacks.json'
_FIGURE = ROOT / 'docs' / 'deep_stacks.svg'


class Job(NamedTuple):
  """A training.

  stacks: '60+12' and the like.
  overrides: of the fields of its config.
  workdir: its run directory.
  """

  stacks: str
  scheme: str
  overrides: dict[str, Any]
  workdir: Path

  @property
  def name(self) -> str:
    """In the results."""
    return f'{self.stacks}/{self.scheme}'

  @property
  def layers(self) -> int:
    """Of both stacks together."""
    return sum(layers_of(self.stacks))

  @property
  def config(self) -> ExperimentConfig:
    """As train.py sees it."""
    return changed(load_config(f'{ROOT / _FILE}:{self.name}'), self.overrides)


@one_line_errors
def main(argv: list[str]) -> None:
  arguments = _parse(argv)
  start_logging()
  limit_cores()
  # A stop of this program stops the one that it has started.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  wanted = jobs(arguments)
  common = wanted[0]._replace(stacks='6+6', scheme='post').config
  settings = measured_fields(common)
  results = resumed(arguments, settings)
  results['unigram'] = unigram_nll(prepare(common.data))
  left_out = run_missing(wanted, results, arguments)
  print(report(results))
  _write_figure(results, arguments)
  if left_out:
    log(
      f'left out, as they do not fit into --minutes={arguments.minutes:g}: '
      f'{", ".join(job.name for job in left_out)}; the same command runs them'
    )


def jobs(arguments: argparse.Namespace) -> list[Job]:
  """Depth by depth, in the order of the flags."""
  schemes = arguments.schemes.split(',') if arguments.schemes else SCHEMES
  for name in schemes:
    if name not in SCHEMES:
      raise InputError(
        f'--schemes: no scheme {name!r}; there are {", ".join(SCHEMES)}'
      )
  depths = arguments.depths.split(',')
  for stacks in depths:
    layers_of(stacks)
  workdir = arguments.workdir.absolute()
  fixed = {
    'training.steps': arguments.steps,
    'optimizer.peak': arguments.peak,
    'optimizer.warmup_steps': arguments.warmup,
  }
  fixed = {name: value for name, value in fixed.items() if value is not None}
  names = (f'-{name.split(".")[1]}={value:g}' for name, value in fixed.items())
  runs = workdir / f'runs{"".join(names)}'
  fixed['data.root'] = str(arguments.data.absolute())
  fixed['data.prepared'] = str(workdir / 'prepared')
  return [
    Job(stacks, scheme, fixed, runs / f'{stacks}-{scheme}')
    for stacks in dict.fromkeys(depths)
    for scheme in dict.fromkeys(schemes)
  ]


def resumed(
  arguments: argparse.Namespace, settings: dict[str, Any]
) -> dict[str, Any]:
  """The results so far."""
  results = resume(arguments.output, settings, arguments.fresh)
  if arguments.output.exists() and not (results['rounds'] or arguments.fresh):
    raise InputError(
      f'--output: {arguments.output}: has results of another recipe; give '
      'another file, or --fresh to replace them'
    )
  return results


def run_missing(
  wanted: Sequence[Job], results: dict[str, Any], arguments: argparse.Namespace
) -> list[Job]:
  """Adds the missing runs to the results, and writes them after each."""
  rounds, begin = results['rounds'], time.monotonic()
  missing = [job for job in wanted if not is_done(job, results)]
  log(f'{len(wanted)} runs, {len(wanted) - len(missing)} of them done')
  for index, job in enumerate(missing):
    rest = missing[index:]
    log(f'{job.name}: {_forecast(rest, rounds)}')
    passed = time.monotonic() - begin
    needed = seconds_of(job, rounds)
    if needed is not None and passed + needed > arguments.minutes * 60:
      return rest
    rounds[job.name] = {'changes': changes(job, results)} | measure(job)
    write_results(arguments.output, results)
  return []


def is_done(job: Job, results: Mapping[str, Any]) -> bool:
  """Whether the results have this run, with the config it has now."""
  run = results['rounds'].get(job.name)
  return run is not None and run['changes'] == changes(job, results)


def changes(job: Job, results: Mapping[str, Any]) -> dict[str, Any]:
  """In what its config differs from the settings of the results."""
  settings = results['settings']
  return {
    name: value
    for name, value in measured_fields(job.config).items()
    if settings[name] != value
  }


def seconds_of(
  job: Job, rounds: Mapping[str, Mapping[str, Any]]
) -> float | None:
  """How long a run will take, or None while no run is known.

  A run takes the median seconds per layer of the runs of its scheme, or of all
  where its scheme has none.
  """
  each: dict[str, list[float]] = {}
  for name, run in rounds.items():
    stacks, _, scheme = name.partition('/')
    each.setdefault(scheme, []).append(run['seconds'] / sum(layers_of(stacks)))
  known = each.get(job.scheme) or list(itertools.chain(*each.values()))
  return statistics.median(known) * job.layers if known else None


def measure(job: Job) -> dict[str, Any]:
  """Trains, reads what was logged, and exchanges the sources."""
  begin = time.monotonic()
  try:
    train(f'{_FILE}:{job.name}', job.workdir, job.overrides)
  except subprocess.CalledProcessError as error:
    raise CheckFailed(f'{job.name}: {error}') from error
  steps = job.config.training.steps
  if not (job.workdir / 'checkpoints' / str(steps)).is_dir():
    raise SystemExit(f'{job.name}: stopped; the same command continues')
  lines = metrics(job.workdir, 'train'), metrics(job.workdir, 'valid')
  return read(*lines, steps) | {
    'other_source': exchanged_nll(job.workdir),
    'seconds': time.monotonic() - begin,
  }


def read(
  lines: Sequence[Mapping[str, Any]],
  validations: Sequence[Mapping[str, Any]],
  steps: int,
) -> dict[str, Any]:
  """What is compared, from the lines of metrics.jsonl."""
  first, last = (lines[0], lines[-1]) if lines else ({}, {})
  finished = last.get('step') == steps
  # Of the encoder's layers, the lowest first.
  norms = [
    [line[name] for name in line if name.startswith('encoder_gradient_norm_')]
    for line in (first, last)
  ]
  return {
    'steps': [line['step'] for line in lines],
    'train': [nll(line['perplexity']) for line in lines],
    'valid': nll(validations[-1]['perplexity']) if validations else None,
    'gradient_norm': first.get('gradient_norm'),
    'first_norms': norms[0],
    'last_norms': norms[1],
    # No line is written while all updates are skipped.
    'skipped': last.get('skipped', 0)
    + (0 if finished else steps - last.get('step', 0)),
  }


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = make_parser(__doc__)
  add = parser.add_argument
  add('--data', type=Path, required=True, help='the folder of Multi30k')
  add('--workdir', type=Path, required=True, help='for the runs')
  add('--depths', default='18+6,30+6,60+12', help='encoder+decoder layers')
  add('--schemes', default='', help='with commas between; default: all')
  add('--minutes', type=float, default=math.inf, help='default: no limit')
  add('--steps', type=int, help='updates; default: of the recipe')
  add('--peak', type=float, help='learning rate; default: of the recipe')
  add('--warmup', type=int, help='its updates; default: of the recipe')
  add('--output', type=Path, default=_OUTPUT)
  add('--fresh', action='store_true', help='forget finished runs')
  return parse_arguments(argv, parser)


def _forecast(rest: Sequence[Job], rounds: Mapping[str, Any]) -> str:
  """How many runs are left, and for how long."""
  each = [seconds_of(job, rounds) for job in rest]
  if None in each:
    return f'{len(rest)} runs to do; the first shows how long they take'
  return (
    f'{len(rest)} runs to do, about {sum(each) / 60:.0f} minutes, this one '
    f'{each[0] / 60:.1f}'
  )


def _write_figure(
  results: Mapping[str, Any], arguments: argparse.Namespace
) -> None:
  if results['rounds']:
    default = arguments.output == _OUTPUT
    path = _FIGURE if default else arguments.output.with_suffix('.svg')
    write_whole(path, as_svg(draw(results)))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
