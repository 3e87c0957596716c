"""What fusion costs: a training and a decoding step beside the baseline's.

    python -m benchmarks.fusion_overhead [--schemes=NAME,NAME]

A scheme and the baseline take turns in one process; benchmarks/README.md says
how. Schemes are saved one by one: the same command resumes. One that fails is
reported and does not stop the others.
"""

import argparse
import dataclasses
import functools
import gc
import statistics
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.common import (
  RESULTS,
  log,
  make_parser,
  resume,
  table,
  write_results,
)
from benchmarks.decode_task import END
from benchmarks.fusion_jax_step import FusionJaxStep, experiment, random_batches
from benchmarks.schemes import (
  POST_NORM,
  Scheme,
  chosen,
  norms_of,
  schemes,
)
from benchmarks.serving import limit_cores, timed
from benchmarks.sizes import SIZES, Size
from fusion_jax.config.flags import parse_arguments
from fusion_jax.config.presets import Row, changed
from fusion_jax.errors import CheckFailed, first_line
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.search.beam import LengthPenalty, beam_search
from fusion_jax.startup import one_line_errors, use_huge_pages
from fusion_jax.tools.aot.matmul_flops import product_gflop

_LEAST_EFFICIENCY = 0.85
_BEAM = 4
_PARTS = ('train', 'decode')
_NUMBERS = ('speed', 'allowed', 'efficiency')


class SearchSteps:
  """A search with cached keys and values; the encoder has been run before.

  Attributes:
    gflop: 10^9 floating point operations of the products of all steps.
  """

  def __init__(
    self,
    model: Transformer,
    parameters: Parameters,
    size: Size,
    beam: int,
    steps: int,
  ):
    """Encodes random sentences and compiles the search."""
    self._steps = steps
    batch = random_batches(size)[0]

    def start(parameters):
      apply = functools.partial(model.apply, {'params': parameters})
      lengths = batch.source_lengths
      encoded = apply(batch.source, lengths, method='encode')
      return apply(encoded, lengths, beam, steps, method='start_decoding')

    def search(parameters, cache, memory):
      apply = functools.partial(model.apply, {'params': parameters})
      return beam_search(
        lambda tokens, position, rows, cache: apply(
          tokens, position, rows, cache, memory, method='decode_step'
        ),
        cache,
        batch=size.rows,
        beam=beam,
        max_length=steps,
        max_lengths=jnp.full(size.rows, steps),
        start_id=model.start_id,
        end_id=END,
        penalty=LengthPenalty(),
        keep=1,
        normalised=model.gives_log_probabilities,
      )

    self._arguments = jax.jit(start)(parameters)
    traced = jax.jit(search).trace(parameters, *self._arguments)
    self.gflop = product_gflop(traced.jaxpr, trips=steps)
    self._search = traced.lower().compile()

  def run(self, parameters: Parameters) -> None:
    """Searches once."""
    found = self._search(parameters, *self._arguments)
    if int(found.lengths.max()) != self._steps:
      raise RuntimeError('the search ended before its last step')


class Programs:
  """The two programs of a scheme.

  Attributes:
    run: runs one of them once.
    gflop: 10^9 floating point operations of its matrix products.
    parameters: of the model.
  """

  def __init__(self, size: Size, row: Row, sentences: int, steps: int):
    norm = POST_NORM if 'post' in norms_of(row) else {}
    step = FusionJaxStep(size, changed(experiment(size), norm | row))
    sources = dataclasses.replace(size, rows=sentences)
    search = SearchSteps(step.model, step.parameters, sources, _BEAM, steps)
    self.gflop = {'train': step.gflop, 'decode': search.gflop}
    self.run = {
      'train': step.step,
      'decode': lambda: search.run(step.parameters),
    }
    for run in self.run.values():
      run()
    self.parameters = step.report()['parameters']


@one_line_errors
def main(argv: list[str]) -> None:
  arguments = _parse(argv)
  limit_cores()
  size = SIZES[arguments.size]
  length = arguments.length or size.length
  size = dataclasses.replace(size, rows=arguments.rows, length=length)
  flags = ('dtype', 'sentences', 'steps', 'rounds')
  settings = dataclasses.asdict(size)
  settings |= {name: getattr(arguments, name) for name in flags}
  results = resume(arguments.output, settings, arguments.fresh)
  every = schemes(size.layers)
  missing = {
    name: scheme
    for name, scheme in chosen(every, arguments.schemes).items()
    if name not in results['rounds']
  }
  failed = _add_rounds(results, missing, size, arguments) if missing else []
  results['summary'] = summaries(results['rounds'])
  write_results(arguments.output, results)
  print(report(results, every))
  if failed:
    raise CheckFailed('; '.join(failed))


def summaries(rounds: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """What `report` shows of each scheme that has been measured."""
  return {
    name: {'extra_parameters': measured['extra_parameters']}
    | {part: _summary(measured[part]) for part in _PARTS}
    for name, measured in rounds.items()
  }


def report(results: dict[str, Any], printed: Mapping[str, Scheme]) -> str:
  """The table and the sentences around it."""
  summary, settings = results['summary'], results['settings']
  header = ('', 'parameters')
  for part in _PARTS:
    header += (part, 'allowed', 'efficiency', 'paper')
  rows = [
    (name, f'{own["extra_parameters"]:+,}', *_cells(own, printed[name]))
    for name, own in summary.items()
  ]
  shape = f'{settings["rows"]} x {settings["length"]}+{settings["length"]}'
  low = [
    f'{name}: training efficiency {own["train"]["efficiency"]:.2f}, less than '
    f'{_LEAST_EFFICIENCY}'
    for name, own in summary.items()
    if own['train']['efficiency'] < _LEAST_EFFICIENCY
  ]
  return '\n'.join(
    (
      f'speed relative to the baseline: training steps of {shape}, decoding '
      f'steps of {settings["sentences"]} x beam {_BEAM}',
      table(header, rows),
      *low,
    )
  )


def _in_turns(
  scheme: Programs, baseline: Programs, part: str, rounds: int
) -> dict[str, Any]:
  """Seconds of both, two a round, and their operations."""
  both = {'baseline': baseline, 'scheme': scheme}
  seconds = {name: [] for name in both}
  for _ in range(rounds):
    for name in ('baseline', 'scheme', 'scheme', 'baseline'):
      seconds[name].append(timed(both[name].run[part]))
  gflop = {name: programs.gflop[part] for name, programs in both.items()}
  return {'seconds': seconds, 'gflop': gflop}


def _summary(measured: dict[str, Any]) -> dict[str, float]:
  """Speeds relative to the baseline, and the efficiency."""
  seconds, gflop = measured['seconds'], measured['gflop']
  both = zip(seconds['baseline'], seconds['scheme'], strict=True)
  speed = statistics.median(base / own for base, own in both)
  allowed = gflop['baseline'] / gflop['scheme']
  return dict(zip(_NUMBERS, (speed, allowed, speed / allowed), strict=True))


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = make_parser(__doc__, RESULTS / 'fusion_overhead.json')
  add = parser.add_argument
  add('--schemes', default='', help='with commas between; default: all')
  add('--size', choices=SIZES, default='base')
  add('--dtype', default='float32', help='or bfloat16: of the activations')
  add('--length', type=int, help='subwords of a sentence; default: as --size')
  add('--rows', type=int, default=8, help='sentences of a training step')
  add('--sentences', type=int, default=16, help='of a decoding step')
  add('--steps', type=int, default=12, help='of a search')
  add('--rounds', type=int, default=4, help='of two timings each')
  add('--fresh', action='store_true', help='start anew')
  return parse_arguments(argv, parser)


def _add_rounds(
  results: dict[str, Any],
  missing: dict[str, Scheme],
  size: Size,
  arguments: argparse.Namespace,
) -> list[str]:
  """Measures schemes; of those that failed, names and reasons."""
  searches = arguments.sentences, arguments.steps
  dtype = {'model.compute_dtype': arguments.dtype}
  baseline, failed = Programs(size, dtype, *searches), []
  for name, scheme in missing.items():
    try:
      own = Programs(size, scheme.row | dtype, *searches)
      measured = {
        part: _in_turns(own, baseline, part, arguments.rounds)
        for part in _PARTS
      }
      extra = own.parameters - baseline.parameters
    except RuntimeError as error:  # Of XLA: too little memory, for example.
      failed.append(f'{name}: {first_line(error)}')
      log(failed[-1])
    else:
      results['rounds'][name] = {'extra_parameters': extra} | measured
      write_results(arguments.output, results)
      speeds = (f'{x} {_summary(measured[x])["speed"]:.2f}' for x in _PARTS)
      log(f'{name}: {", ".join(speeds)}')
    own = None
    jax.clear_caches()
    gc.collect()
  return failed


def _cells(own: dict[str, Any], scheme: Scheme) -> tuple[str, ...]:
  cells = ()
  for part in _PARTS:
    printed = getattr(scheme, part)
    cells += tuple(f'{own[part][key]:.2f}' for key in _NUMBERS)
    cells += ('' if printed is None else f'{printed:.2f}',)
  return cells


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
