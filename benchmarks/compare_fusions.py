r"""Every fusion scheme with the same training: size, speed and BLEU.

    python -m benchmarks.compare_fusions --data=DIR --workdir=DIR \
        [--steps=N] [--seeds=0,1] [--schemes=NAME,NAME] [--full] \
        [--from_baseline]

Trains the baseline and each scheme by train.py with the same recipe
(benchmarks/fusion_recipes.py), data, order of batches and number of updates,
and translates the test set by decode.py. With --from_baseline every run, that
of the baseline too, starts from the baseline's run of its seed, trained by the
same command without it: the recipe of Dou et al. (2018, 2019).

Training speed is compared over log lines that cover the same batches, decoding
speed over passes over the test set; neither has compilation in it. Finished
runs are saved: the same command goes on, also inside a training that was
broken off.
"""

import argparse
import gzip
import json
import math
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import RESULTS, log, resume, table, write_results
from benchmarks.programs import measured_fields, metrics, start, train
from benchmarks.schemes import BASELINE, chosen, schemes
from benchmarks.serving import limit_cores
from fusion_jax.config import ExperimentConfig
from fusion_jax.errors import InputError, one_line_errors
from fusion_jax.flags import load_config, parse_arguments
from fusion_jax.presets import changed

_FILE = 'benchmarks/fusion_recipes.py'
_BLEU = re.compile(r'^(BLEU\S+) = ([\d.]+)', re.MULTILINE)


class Job(NamedTuple):
  """A training, what it translates, and where its directory is."""

  scheme: str
  seed: int
  variant: str
  overrides: dict[str, Any]
  workdir: Path
  test: dict[str, Path]

  @property
  def name(self) -> str:
    """In the results."""
    return f'{self.scheme}, seed {self.seed}'

  @property
  def config(self) -> ExperimentConfig:
    """As train.py sees it."""
    return changed(load_config(self.variant), self.overrides)


@one_line_errors
def main(argv: list[str]) -> None:
  """Runs what is missing, then prints the table."""
  arguments = _parse(argv)
  if not arguments.full:
    limit_cores()
  # A stop of this program stops the one that it has started.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  jobs = _jobs(arguments)
  settings = measured_fields(jobs[0].config)
  settings['from_baseline'] = arguments.from_baseline
  results = resume(arguments.output, settings, arguments.fresh)
  failed = [job.name for job in jobs if not _add(job, results, arguments)]
  if any(run['scheme'] == BASELINE for run in results['rounds'].values()):
    print(report(results))
  if failed:
    log(f'failed, to be tried again by the same command: {"; ".join(failed)}')
    raise SystemExit(1)


def measure(job: Job) -> dict[str, Any]:
  """Trains, translates and times.

  Raises:
    subprocess.CalledProcessError: a program failed.
    SystemExit: the training was stopped; it has been saved.
  """
  begin = time.monotonic()
  train(job.variant, job.workdir, job.overrides)
  validations = metrics(job.workdir, 'valid')
  if not validations or validations[-1]['step'] != job.config.training.steps:
    raise SystemExit(f'{job.name}: stopped; the same command goes on')
  rates = {
    str(line['step']): line['tokens_per_second']
    for line in metrics(job.workdir, 'train')
  }
  scores = start(
    'decode.py',
    f'--workdir={job.workdir}',
    f'--input={job.test["source"]}',
    f'--reference={job.test["target"]}',
    f'--output={job.workdir / "test.txt"}',
  )
  signature, bleu = _BLEU.search(scores).groups()
  return _decoding(job) | {
    'bleu': float(bleu),
    'signature': signature,
    # Of a mixture of groups this is the mixture's own, not Eq. 7.
    'validation_loss': min(
      math.log(line['perplexity']) for line in validations
    ),
    # The first line has compilation in it.
    'tokens_per_second': dict([*rates.items()][1:]),
    'seconds': time.monotonic() - begin,
  }


def summarise(rounds: dict[str, dict[str, Any]], scheme: str) -> dict[str, Any]:
  """Means over the seeds of a scheme, speeds relative to the baseline."""
  own = {run['seed']: run for run in rounds.values() if run['scheme'] == scheme}
  base = {r['seed']: r for r in rounds.values() if r['scheme'] == BASELINE}
  pairs = [(own[seed], base[seed]) for seed in own if seed in base]
  bleu = [run['bleu'] for run in own.values()]
  first = next(iter(own.values()))
  return {
    'seeds': sorted(own),
    'parameters': first['parameters'],
    'bleu': statistics.mean(bleu),
    'bleu_deviation': statistics.stdev(bleu) if len(bleu) > 1 else None,
    'validation_loss': statistics.mean(
      run['validation_loss'] for run in own.values()
    ),
    'train': statistics.median(
      rate / other['tokens_per_second'][step]
      for run, other in pairs
      for step, rate in run['tokens_per_second'].items()
    ),
    'decode': statistics.mean(
      run['output_tokens_per_second'] / other['output_tokens_per_second']
      for run, other in pairs
    ),
  }


def report(results: dict[str, Any]) -> str:
  """The table, of seeds that have a baseline, and the sentences around it."""
  rounds = {
    name: run
    for name, run in results['rounds'].items()
    if f'{BASELINE}, seed {run["seed"]}' in results['rounds']
  }
  names = dict.fromkeys(run['scheme'] for run in rounds.values())
  summary = {name: summarise(rounds, name) for name in names}
  base = summary[BASELINE]
  rows = [
    (
      name,
      f'{own["parameters"]:,}',
      f'{own["parameters"] - base["parameters"]:+,}',
      f'{own["train"]:.2f}',
      f'{own["decode"]:.2f}',
      _with_deviation(own['bleu'], own['bleu_deviation']),
      f'{own["bleu"] - base["bleu"]:+.2f}',
      f'{own["validation_loss"]:.4f}',
      f'{len(own["seeds"])}',
    )
    for name, own in summary.items()
  ]
  header = ('', 'parameters', 'extra', 'train', 'decode', 'BLEU', 'gain')
  header += ('validation loss', 'seeds')
  signatures = sorted({run['signature'] for run in rounds.values()})
  settings = results['settings']
  minutes = sum(run['seconds'] for run in rounds.values()) / 60
  return '\n'.join(
    [
      f'{settings["training.steps"]:,} updates of '
      f'{settings["data.batch.tokens"]:,} slots, width '
      f'{settings["model.width"]}, {settings["model.encoder_layers"]}+'
      f'{settings["model.decoder_layers"]} layers, from '
      f'{"the trained baseline" if settings["from_baseline"] else "scratch"}; '
      'train and decode: speed relative to the baseline',
      table(header, rows),
      *signatures,
      f'{minutes:.0f} minutes',
    ]
  )


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--data', type=Path, required=True, help='the folder of Multi30k')
  add('--workdir', type=Path, required=True, help='for the runs')
  add('--steps', type=int, help='updates; default: of the recipe')
  add('--seeds', help="with commas between; default: 0, of --full '0,1,2'")
  add('--schemes', default='', help='with commas between; default: all')
  add('--full', action='store_true', help='the recipe for a GPU')
  add('--from_baseline', action='store_true', help='start from its runs')
  add('--output', type=Path)
  add('--fresh', action='store_true', help='forget finished runs')
  arguments = parse_arguments(argv, parser)
  arguments.recipe = 'full' if arguments.full else 'small'
  suffix = '_from_baseline' if arguments.from_baseline else ''
  arguments.output = arguments.output or (
    RESULTS / f'compare_fusions_{arguments.recipe}{suffix}.json'
  )
  return arguments


def _jobs(arguments: argparse.Namespace) -> list[Job]:
  """Seed by seed, the baseline first."""
  recipe = load_config(f'{_FILE}:{arguments.recipe}/{BASELINE}')
  workdir, data = arguments.workdir.absolute(), arguments.data.absolute()
  steps = arguments.steps or recipe.training.steps
  seeds = arguments.seeds or ('0,1,2' if arguments.full else '0')
  names = chosen(schemes(recipe.model.encoder_layers), arguments.schemes)
  test = _test_files(recipe, data, workdir)
  scratch = workdir / f'{arguments.recipe}-{steps}'
  runs = scratch
  if arguments.from_baseline:
    runs = workdir / f'{scratch.name}-from_baseline'
  fixed = {
    'data.root': str(data),
    'data.prepared': str(workdir / 'prepared'),
    'training.steps': steps,
    'training.validate_every': min(recipe.training.validate_every, steps),
    'training.log_every': min(recipe.training.log_every, max(steps // 8, 1)),
  }
  jobs = []
  for seed in map(int, seeds.split(',')):
    own = fixed | {'training.seed': seed}
    if arguments.from_baseline:
      own['training.init_from'] = str(_trained(scratch / f'{BASELINE}-{seed}'))
    jobs += [
      Job(
        name,
        seed,
        f'{_FILE}:{arguments.recipe}/{name}',
        own,
        runs / f'{name}-{seed}',
        test,
      )
      for name in dict.fromkeys((BASELINE, *names))
    ]
  return jobs


def _trained(run: Path) -> Path:
  if not (run / 'checkpoints').is_dir():
    raise InputError(
      f'--from_baseline: {run}: no such run; the command without '
      f'--from_baseline and with --schemes={BASELINE} trains it'
    )
  return run


def _test_files(
  recipe: ExperimentConfig, data: Path, workdir: Path
) -> dict[str, Path]:
  """Both sides of the test set, unpacked; decode.py reads plain text."""
  files = {}
  for side in ('source', 'target'):
    language = getattr(recipe.data, f'{side}_language')
    packed = data / recipe.data.test[0].format(lang=language)
    if not packed.is_file():
      raise InputError(f'--data: {packed}: no such file')
    workdir.mkdir(parents=True, exist_ok=True)
    files[side] = workdir / packed.stem
    with gzip.open(packed) as read, files[side].open('wb') as write:
      shutil.copyfileobj(read, write)
  return files


def _add(
  job: Job, results: dict[str, Any], arguments: argparse.Namespace
) -> bool:
  """Adds a run to the results, if it is missing; whether it is there then."""
  rounds, settings = results['rounds'], results['settings']
  changes = {
    name: value
    for name, value in measured_fields(job.config).items()
    if settings[name] != value
  }
  if job.name in rounds and rounds[job.name]['changes'] == changes:
    return True
  try:
    measured = measure(job)
  except subprocess.CalledProcessError as error:
    log(f'{job.name}: {error}')
    return False
  known = {'scheme': job.scheme, 'seed': job.seed, 'changes': changes}
  rounds[job.name] = known | measured
  write_results(arguments.output, results)
  log(f'{job.name}: BLEU {measured["bleu"]:.2f}')
  return True


def _decoding(job: Job) -> dict[str, Any]:
  """Size of the model and the rate at which it translates."""
  output = job.workdir / 'decoding.json'
  beam = job.config.decoding.beam_size
  start(
    '-m',
    'benchmarks.decode_throughput',
    f'--workdir={job.workdir}',
    f'--input={job.test["source"]}',
    f'--output={output}',
    f'--beams={beam}',
    '--single=0',
  )
  timed = json.loads(output.read_text())
  (setting,) = timed['settings'].values()
  return {
    'parameters': timed['parameters'],
    'output_tokens_per_second': setting['output_tokens_per_second']['median'],
  }


def _with_deviation(mean: float, deviation: float | None) -> str:
  return f'{mean:.2f}' + ('' if deviation is None else f' ± {deviation:.2f}')


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
