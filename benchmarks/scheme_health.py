r"""Whether every fusion scheme learns: short trainings beside the plain model.

    python -m benchmarks.scheme_health --data=DIR [--schemes=NAME,NAME] \
        [--seeds=0,1,2] [--minutes=60] [--override=FIELD=VALUE ...]

Trains every scheme from scratch and from a trained plain model, and exits with
1 where one is too far behind the plain model. Finished trainings are kept in
--output; the same command does the rest. benchmarks/README.md tells more.
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
from fusion_jax.config.presets import Row, changed, depth
from fusion_jax.config.serialization import flatten
from fusion_jax.errors import InputError
from fusion_jax.startup import one_line_errors, start_logging

SCRATCH, CONTINUED = 'scratch', 'continued'
_SETTING: Row = {
  'data.tokenizer.vocabulary_size': 2_000,
  'data.filter.max_length': 20,
  'data.batch.tokens': 640,
  'data.batch.shapes': 1,
  'model.width': 64,
  'model.filter': 256,
  'model.heads': 2,
  **depth(4, 4),
  'model.initialization': 'glorot',
  'model.dropout': 0.1,
  'model.embedding_dropout': 0.1,
  'optimizer.peak': 5e-3,
  'optimizer.warmup_steps': 80,
  'training.steps': 240,
  'training.metric': 'loss',
  'training.translate_sentences': 1,
  'training.keep_last': 1,
  'training.keep_best': 0,
}
_PHASES: Mapping[str, Row] = {
  SCRATCH: {},
  CONTINUED: {'optimizer.peak': 3e-3, 'training.steps': 180},
}
# Updates of the plain model that others start from.
_BEFORE = 300
# Nats that a scheme may be behind the plain model.
_BEHIND = {SCRATCH: 0.1, CONTINUED: 0.02}
_MEAN_BEHIND = 0.05
_MANY_SEEDS = 3

_LITERAL = 'the literal form, which the default replaces'
# Why a scheme may be behind: (scheme, phase) and the reason, which is tested by
# the scheme that differs in it alone.
EXCEPTIONS: Mapping[tuple[str, str], str] = {
  ('dynamic_routing_paper', SCRATCH): _LITERAL,
  ('em_routing_paper', SCRATCH): _LITERAL,
}


class Job(NamedTuple):
  """A training: a scheme, from where, and a seed."""

  scheme: str
  phase: str
  seed: int

  @property
  def name(self) -> str:
    """In the results."""
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
  left = _run(jobs(names, seeds), names, config, results, arguments)
  print(report(results['rounds']))
  if left:
    common.log(
      f'left out for want of time: {", ".join(job.name for job in left)}'
    )
  if left or any(v.failed for v in verdicts(results['rounds']).values()):
    raise SystemExit(1)


def jobs(names: Iterable[str], seeds: Iterable[int]) -> list[Job]:
  """Return the trainings, seed by seed, those of the plain model first."""
  ordered = tuple(dict.fromkeys((BASELINE, *names)))
  return [
    Job(name, phase, seed)
    for seed in seeds
    for name in ordered
    for phase in (SCRATCH, CONTINUED)
    if phase == SCRATCH or name not in ONLY_FROM_SCRATCH
  ]


def verdicts(
  rounds: Mapping[str, Mapping[str, Any]],
) -> dict[tuple[str, str], Verdict]:
  """Return the verdict on each scheme and phase that has been trained."""
  nll = {
    (run['scheme'], run['phase'], run['seed']): run['end']
    for run in rounds.values()
  }
  behind: dict[tuple[str, str], list[float]] = {}
  for (scheme, phase, seed), value in nll.items():
    plain = nll.get((BASELINE, phase, seed))
    if scheme != BASELINE and plain is not None:
      behind.setdefault((scheme, phase), []).append(value - plain)
  known = {}
  for (scheme, phase), values in behind.items():
    mean, most = statistics.mean(values), _BEHIND[phase]
    if phase == SCRATCH and len(values) >= _MANY_SEEDS:
      most = _MEAN_BEHIND
    reason = EXCEPTIONS.get((scheme, phase), '')
    failed = not mean <= most and not reason
    known[scheme, phase] = Verdict(mean, len(values), failed, reason)
  return known


def report(rounds: Mapping[str, Mapping[str, Any]]) -> str:
  """Return the table of all trainings, and what failed."""
  known = verdicts(rounds)
  behind = {key: f'{verdict.behind:+.3f}' for key, verdict in known.items()}
  rows = [
    (
      *(run['scheme'], run['phase'], run['seed']),
      f'{run["end"]:.3f}',
      behind.get((run['scheme'], run['phase']), ''),
      f'{run["encoder"] / run["gradient"]:.3f}',
      _entropies(run['telemetry'], 'encoder'),
      _entropies(run['telemetry'], 'decoder'),
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


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = common.make_parser(__doc__)
  add = parser.add_argument
  add('--data', type=Path, required=True, help='the folder of Multi30k')
  add('--workdir', type=Path, help='keep the text and the plain model in it')
  add('--schemes', default='', help='with commas between; default: all')
  add('--seeds', default='0', help='with commas between; default: 0')
  add('--minutes', type=float, default=60.0, help='start no training after it')
  add('--output', type=Path, default=common.RESULTS / 'scheme_health.json')
  add(
    '--override',
    action='append',
    default=[],
    metavar='FIELD=VALUE',
    help='another value of a field in all schemes but the plain model',
  )
  add('--fresh', action='store_true', help='forget finished trainings')
  return parse_arguments(argv, parser)


def setting(data: Path, workdir: Path | None) -> ExperimentConfig:
  """The config of the plain model; it has prepared text in a folder."""
  if not data.is_dir():
    raise InputError(f'--data: {data}: no such folder')
  folder = workdir or Path(tempfile.gettempdir()) / 'fusion_jax_health'
  where = {'data.root': str(data.absolute()), 'data.prepared': str(folder)}
  return changed(load_config('multi30k:en-de'), _SETTING | where)


def job_config(
  config: ExperimentConfig,
  scheme: Scheme,
  job: Job,
  overrides: Sequence[str] = (),
) -> ExperimentConfig:
  """Return the config of a training."""
  made = changed(config, _PHASES[job.phase] | {'training.seed': job.seed})
  made = changed(made, scheme.row)
  if job.scheme != BASELINE:
    fields = (text.partition('=') for text in overrides)
    made = override(made, [(name, value) for name, _, value in fields])
  if job.phase == SCRATCH:
    return made
  exact = {
    f'model.{name}.start': 'baseline'
    for name in ('encoder', 'decoder')
    if made.model.side(name) != type(made.model.side(name))()
  }
  return changed(made, exact)


def train(config: ExperimentConfig, workdir: Path) -> dict[str, Any]:
  """Trains, and reads what was logged; gradients are means over all updates."""
  begin, steps = time.monotonic(), config.training.steps
  every = ('training.log_every', 'training.save_every')
  config = changed(config, dict.fromkeys(every, steps))
  config = changed(config, {'training.validate_every': steps})
  fusion_jax.train(config, workdir)
  line, telemetry = (
    common.metrics(workdir, 'train')[-1],
    common.metrics(workdir, 'fusion'),
  )
  perplexity = common.metrics(workdir, 'valid')[-1]['perplexity']
  layers = range(1, config.model.encoder_layers + 1)
  norms = [line[f'encoder_gradient_norm_{layer}'] for layer in layers]
  return {
    'end': math.inf if perplexity is None else math.log(perplexity),
    'telemetry': telemetry[-1] if telemetry else {},
    'gradient': line['gradient_norm'],
    'encoder': math.hypot(*norms),
    'skipped': line['skipped'],
    'seconds': time.monotonic() - begin,
  }


def _run(
  todo: list[Job],
  rows: Mapping[str, Scheme],
  config: ExperimentConfig,
  results: dict[str, Any],
  arguments: argparse.Namespace,
) -> list[Job]:
  """Adds what is missing; what there was no time for."""
  begin, rounds = time.monotonic(), results['rounds']
  missing = [job for job in todo if job.name not in rounds]
  rows = schemes(config.model.encoder_layers) | dict(rows)
  for number, job in enumerate(missing):
    if time.monotonic() - begin > 60 * arguments.minutes:
      return missing[number:]
    made = job_config(config, rows[job.scheme], job, arguments.override)
    if job.phase == CONTINUED:
      start = {'training.init_from': str(_plain(config, job.seed))}
      made = changed(made, start)
    with tempfile.TemporaryDirectory() as folder:
      rounds[job.name] = job._asdict() | train(made, Path(folder) / 'run')
    common.write_results(arguments.output, results)
    common.log(f'{job.name}: {rounds[job.name]["end"]:.3f} nats')
    jax.clear_caches()
  return []


def _plain(config: ExperimentConfig, seed: int) -> Path:
  """The run of the plain model that schemes start from."""
  workdir = Path(config.data.prepared) / f'plain-{seed}'
  fields = {'training.steps': _BEFORE, 'training.seed': seed}
  train(changed(config, fields), workdir)
  return workdir


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
