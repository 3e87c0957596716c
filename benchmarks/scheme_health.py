r"""Whether every fusion scheme learns: short trainings beside the plain model.

    python -m benchmarks.scheme_health --data=DIR [--schemes=NAME,NAME] \
        [--seeds=0,1,2] [--minutes=60] [--override=FIELD=VALUE ...]

Trains every scheme from scratch and from a trained plain model, as
scheme_health.toml says, and exits with 1 where one is too far behind the plain
model. Finished trainings are kept in --output; the same command does the rest.
benchmarks/README.md tells more.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

import fusion_jax
from benchmarks import common
from benchmarks.schemes import (
  BASELINE,
  ONLY_FROM_SCRATCH,
  Scheme,
  chosen,
  schemes,
)
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config, override, parse_arguments
from fusion_jax.config.presets import changed
from fusion_jax.config.serialization import flatten
from fusion_jax.errors import InputError
from fusion_jax.startup import one_line_errors, start_logging
from fusion_jax.studies.plan import as_the_plain_model

SETTING = common.data_of(__file__)
PHASES = SCRATCH, CONTINUED = 'scratch', 'continued'


class Job(NamedTuple):
  """A training: a scheme, from where, and a seed."""

  scheme: str
  phase: str
  seed: int

  @property
  def name(self) -> str:
    return f'{self.scheme}, {self.phase}, seed {self.seed}'


class Verdict(NamedTuple):
  """What a scheme's trainings of one phase say.

  `behind` is the mean over the seeds of NLL minus that of the plain model,
  `reason` that of an exception.
  """

  behind: float
  seeds: int
  failed: bool
  reason: str


def jobs(names: Iterable[str], seeds: Iterable[int]) -> list[Job]:
  """Return the trainings, seed by seed, those of the plain model first."""
  ordered = tuple(dict.fromkeys((BASELINE, *names)))
  return [
    Job(name, phase, seed)
    for seed in seeds
    for name in ordered
    for phase in PHASES
    if phase == SCRATCH or name not in ONLY_FROM_SCRATCH
  ]


def verdicts(
  rounds: Mapping[str, Mapping[str, Any]],
) -> dict[tuple[str, str], Verdict]:
  """Return the verdict on each scheme and phase that has been trained."""
  nll = {
    Job(run['scheme'], run['phase'], run['seed']): run['end']
    for run in rounds.values()
  }
  behind: dict[tuple[str, str], list[float]] = {}
  for job, value in nll.items():
    plain = nll.get(job._replace(scheme=BASELINE))
    if job.scheme != BASELINE and plain is not None:
      behind.setdefault((job.scheme, job.phase), []).append(value - plain)
  return {key: _verdict(*key, values) for key, values in behind.items()}


def _verdict(scheme: str, phase: str, behind: Sequence[float]) -> Verdict:
  limits, reason = SETTING['behind'], ''
  most = limits[phase]
  if phase == SCRATCH:
    reason = SETTING['exceptions'].get(scheme, '')
    most = limits['mean'] if len(behind) >= limits['seeds'] else most
  mean = statistics.mean(behind)
  return Verdict(mean, len(behind), not mean <= most and not reason, reason)


def report(rounds: Mapping[str, Mapping[str, Any]]) -> str:
  known = verdicts(rounds)
  behind = {key: f'{verdict.behind:+.3f}' for key, verdict in known.items()}
  rows = [
    (
      *(run['scheme'], run['phase'], run['seed']),
      f'{run["end"]:.3f}',
      behind.get((run['scheme'], run['phase']), ''),
      f'{run["encoder"] / run["gradient"]:.3f}',
      *(_entropies(run['telemetry'], side) for side in ('encoder', 'decoder')),
    )
    for run in rounds.values()
  ]
  header = ('', 'from', 'seed', 'NLL', 'behind', 'encoder')
  header += ('entropies, encoder', 'decoder')
  lines = [common.table(header, rows)]
  for (scheme, phase), verdict in known.items():
    if verdict.failed:
      lines.append(f'{scheme}, {phase}: {verdict.behind:+.3f} nats, too far')
    elif verdict.reason:
      lines.append(f'{scheme}, {phase}: excepted, {verdict.reason}')
  return '\n'.join(lines)


def _entropies(telemetry: Mapping[str, float], side: str) -> str:
  prefix = f'{side}/read_out/coupling_entropy_'
  return ' '.join(
    f'{value:.2f}' for name, value in telemetry.items() if prefix in name
  )


def setting(data: Path, workdir: Path | None) -> ExperimentConfig:
  """The config of the plain model; it has prepared text in a folder."""
  if not data.is_dir():
    raise InputError(f'--data: {data}: no such folder')
  folder = workdir or Path(tempfile.gettempdir()) / 'fusion_jax_health'
  places = {'data.root': str(data.absolute()), 'data.prepared': str(folder)}
  base = load_config('multi30k:en-de')
  return changed(base, SETTING['fields'] | places)


def job_config(
  config: ExperimentConfig,
  scheme: Scheme,
  job: Job,
  overrides: Sequence[str] = (),
) -> ExperimentConfig:
  phase = SETTING['phases'][job.phase] | {'training.seed': job.seed}
  made = changed(changed(config, phase), scheme.row)
  if job.scheme != BASELINE:
    fields = (text.partition('=') for text in overrides)
    made = override(made, [(name, value) for name, _, value in fields])
  if job.phase == CONTINUED:
    made = changed(made, as_the_plain_model(made))
  return made


def train(config: ExperimentConfig, workdir: Path) -> dict[str, Any]:
  """Trains, and reads what was logged; gradients are means over all updates."""
  begin, steps = time.monotonic(), config.training.steps
  every = 'log_every', 'save_every', 'validate_every'
  config = changed(config, {f'training.{name}': steps for name in every})
  fusion_jax.train(config, workdir)
  line = common.metrics(workdir, 'train')[-1]
  telemetry = common.metrics(workdir, 'fusion')
  end = common.metrics(workdir, 'valid')[-1]['loss']
  layers = range(1, config.model.encoder_layers + 1)
  norms = [line[f'encoder_gradient_norm_{layer}'] for layer in layers]
  return {
    'end': math.inf if end is None else end,
    'telemetry': telemetry[-1] if telemetry else {},
    'gradient': line['gradient_norm'],
    'encoder': math.hypot(*norms),
    'skipped': line['skipped'],
    'seconds': time.monotonic() - begin,
  }


def _run(
  missing: Sequence[Job],
  config: ExperimentConfig,
  results: dict[str, Any],
  arguments: argparse.Namespace,
) -> Sequence[Job]:
  """Adds what is missing; what there was no time for."""
  begin, rows = time.monotonic(), schemes(config.model.encoder_layers)
  for number, job in enumerate(missing):
    if time.monotonic() - begin > 60 * arguments.minutes:
      return missing[number:]
    made = job_config(config, rows[job.scheme], job, arguments.override)
    if job.phase == CONTINUED:
      start = {'training.init_from': str(_plain(config, job.seed))}
      made = changed(made, start)
    with tempfile.TemporaryDirectory() as folder:
      run = job._asdict() | train(made, Path(folder) / 'run')
    results['rounds'][job.name] = run
    common.write_results(arguments.output, results)
    common.log(f'{job.name}: {run["end"]:.3f} nats')
    jax.clear_caches()
  return ()


def _plain(config: ExperimentConfig, seed: int) -> Path:
  """The run of the plain model that schemes start from."""
  workdir = Path(config.data.prepared) / f'plain-{seed}'
  fields = {'training.steps': SETTING['before'], 'training.seed': seed}
  train(changed(config, fields), workdir)
  return workdir


@one_line_errors
def main(argv: list[str]) -> None:
  arguments = _parse(argv)
  start_logging()
  config = setting(arguments.data, arguments.workdir)
  names = chosen(schemes(config.model.encoder_layers), arguments.schemes)
  seeds = [int(seed) for seed in arguments.seeds.split(',')]
  settings = flatten(changed(config, {'data.root': '', 'data.prepared': ''}))
  settings['overrides'] = arguments.override
  results = common.resume(arguments.output, settings, arguments.fresh)
  rounds = results['rounds']
  missing = [job for job in jobs(names, seeds) if job.name not in rounds]
  left = _run(missing, config, results, arguments)
  print(report(rounds))
  if left:
    names = ', '.join(job.name for job in left)
    common.log(f'left out for want of time: {names}')
  if left or any(verdict.failed for verdict in verdicts(rounds).values()):
    raise SystemExit(1)


def _parse(argv: list[str]) -> argparse.Namespace:
  output = common.RESULTS / 'scheme_health.json'
  parser = common.make_parser(__doc__, output)
  add = parser.add_argument
  add('--data', type=Path, required=True, help='the folder of Multi30k')
  add('--workdir', type=Path, help='keep the text and the plain model in it')
  add('--schemes', default='', help='with commas between; default: all')
  add('--seeds', default='0', help='with commas between; default: 0')
  add('--minutes', type=float, default=60.0, help='start no training after it')
  add(
    '--override',
    action='append',
    default=[],
    metavar='FIELD=VALUE',
    help='another value of a field in all schemes but the plain model',
  )
  add('--fresh', action='store_true', help='forget finished trainings')
  return parse_arguments(argv, parser)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
