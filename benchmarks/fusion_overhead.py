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
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import common
from benchmarks.contestants import (
  FusionJaxStep,
  experiment,
  moved_gbytes,
  random_batches,
)
from benchmarks.schemes import Scheme, chosen, norms_of, schemes
from benchmarks.serving import limit_cores, timed
from benchmarks.sizes import END, SIZES, Size
from fusion_jax.config.flags import parse_arguments
from fusion_jax.config.presets import Row, changed
from fusion_jax.errors import CheckFailed, first_line
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.search.beam import LengthPenalty, beam_search
from fusion_jax.startup import one_line_errors, use_huge_pages
from fusion_jax.tools.aot.matmul_flops import product_gflop

_BEAM = 4
_PARTS = ('train', 'decode')
_NUMBERS = ('speed', 'allowed', 'efficiency')
# Bytes of an array that no cache holds.
_LARGE = 2**29


class SearchSteps:
  """A search with cached keys and values; the encoder has been run before.

  All its steps have `gflop` 10^9 operations of matrix products, and their
  instructions move `gbytes` 10^9 bytes.
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
    self.gbytes = moved_gbytes(self._search.as_text(), trips=steps)

  def run(self, parameters: Parameters) -> None:
    """Searches once."""
    hypotheses = self._search(parameters, *self._arguments)
    if int(hypotheses.lengths.max()) != self._steps:
      raise RuntimeError('the search ended before its last step')


class Programs:
  """The training step and the search of a scheme, by their names.

  `megabytes`: 2^20 bytes that a training step needs beside its arguments.
  """

  def __init__(self, size: Size, row: Row, sentences: int, steps: int):
    step = FusionJaxStep(size, changed(experiment(size), row))
    sources = dataclasses.replace(size, rows=sentences)
    search = SearchSteps(step.model, step.parameters, sources, _BEAM, steps)
    self.gflop = {'train': step.gflop, 'decode': search.gflop}
    self.gbytes = {'train': step.gbytes, 'decode': search.gbytes}
    self.run = {
      'train': step.step,
      'decode': lambda: search.run(step.parameters),
    }
    for run in self.run.values():
      run()
    reported = step.report()
    self.parameters = reported['parameters']
    self.megabytes = reported['temporary_memory_mb']


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
  results = common.resume(arguments.output, settings, arguments.fresh)
  every = schemes(size.layers)
  missing = {
    name: scheme
    for name, scheme in chosen(every, arguments.schemes).items()
    if name not in results['rounds']
  }
  failed = _add_rounds(results, missing, size, arguments) if missing else []
  results['summary'] = summaries(results)
  common.write_results(arguments.output, results)
  print(report(results, every))
  if failed:
    raise CheckFailed('; '.join(failed))


def summaries(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """What `report` shows of each scheme that has been measured."""
  rate = results['bandwidth']
  return {
    name: {key: measured[key] for key in ('extra_parameters', 'memory')}
    | {part: _summary(measured[part], rate) for part in _PARTS}
    for name, measured in results['rounds'].items()
  }


def report(results: dict[str, Any], printed: Mapping[str, Scheme]) -> str:
  """The table and the sentences around it."""
  summary, settings = results['summary'], results['settings']
  header = ('', 'parameters', 'memory')
  for part in _PARTS:
    header += (part, 'allowed', 'by', 'efficiency', 'paper')
  rows = [
    (
      name,
      f'{numbers["extra_parameters"]:+,}',
      f'{numbers["memory"]:.2f}',
      *_cells(numbers, printed[name]),
    )
    for name, numbers in summary.items()
  ]
  shape = f'{settings["rows"]} x {settings["length"]}+{settings["length"]}'
  return (
    f'speed relative to the baseline: training steps of {shape}, decoding '
    f'steps of {settings["sentences"]} x beam {_BEAM}\n{common.table(header, rows)}'
  )


def _in_turns(
  scheme: Programs, baseline: Programs, part: str, rounds: int
) -> dict[str, Any]:
  """Seconds of both, two a round, and their operations and bytes."""
  both = {'baseline': baseline, 'scheme': scheme}
  seconds = {name: [] for name in both}
  for _ in range(rounds):
    for name in ('baseline', 'scheme', 'scheme', 'baseline'):
      seconds[name].append(timed(both[name].run[part]))
  return {
    'seconds': seconds,
    'gflop': {name: one.gflop[part] for name, one in both.items()},
    'gbytes': {name: one.gbytes[part] for name, one in both.items()},
  }


def memory_rate() -> float:
  """10^9 bytes per second of reading an array and writing it in its place."""
  add_one = jax.jit(lambda x: x + 1, donate_argnums=0)
  x = add_one(jnp.zeros(_LARGE // 4, jnp.float32))
  seconds = []
  for _ in range(9):
    begin = time.perf_counter()
    x = jax.block_until_ready(add_one(x))
    seconds.append(time.perf_counter() - begin)
  return 2 * _LARGE / 1e9 / statistics.median(seconds)


def _summary(measured: dict[str, Any], bandwidth: float) -> dict[str, Any]:
  """Speeds relative to the baseline, what bounds them, and the efficiency."""
  seconds = measured['seconds']
  both = zip(seconds['baseline'], seconds['scheme'], strict=True)
  speed = statistics.median(base / scheme for base, scheme in both)
  slower = _slower(measured, bandwidth)
  by = max(slower, key=lambda name: slower[name])
  allowed = 1 / slower[by]
  return {
    'speed': speed,
    'allowed': allowed,
    'by': by,
    'efficiency': speed / allowed,
  }


def _slower(measured: dict[str, Any], bandwidth: float) -> dict[str, float]:
  """How many times as long as the baseline's a step has to take, by bound.

  By its products, as if the baseline did nothing else; and by its bytes: those
  that the baseline does not move take their time beside it.
  """
  gflop, gbytes = measured['gflop'], measured['gbytes']
  extra = (gbytes['scheme'] - gbytes['baseline']) / bandwidth
  return {
    'products': gflop['scheme'] / gflop['baseline'],
    'bytes': 1 + extra / statistics.median(measured['seconds']['baseline']),
  }


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = common.make_parser(__doc__, common.RESULTS / 'fusion_overhead.json')
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

  @functools.cache
  def plain(norm: str) -> Programs:
    return Programs(size, dtype | {'model.norm': norm}, *searches)

  results.setdefault('bandwidth', memory_rate())
  failed = []
  for name, scheme in missing.items():
    norm = norms_of(scheme.row)[-1]
    try:
      baseline = plain(norm)
      row = dtype | {'model.norm': norm} | scheme.row
      fused = Programs(size, row, *searches)
      measured = {
        part: _in_turns(fused, baseline, part, arguments.rounds)
        for part in _PARTS
      }
      extra = fused.parameters - baseline.parameters
    except RuntimeError as error:  # Of XLA: too little memory, for example.
      failed.append(f'{name}: {first_line(error)}')
      common.log(failed[-1])
    else:
      memory = fused.megabytes / baseline.megabytes
      numbers = {'extra_parameters': extra, 'memory': memory, 'norm': norm}
      results['rounds'][name] = numbers | measured
      common.write_results(arguments.output, results)
      both = (_summary(measured[x], results['bandwidth']) for x in _PARTS)
      speeds = (f'{part["speed"]:.2f}' for part in both)
      common.log(f'{name}: train {", decode ".join(speeds)}')
    fused = None
    jax.clear_caches()
    gc.collect()
  return failed


def _cells(numbers: dict[str, Any], scheme: Scheme) -> tuple[str, ...]:
  cells = ()
  for part in _PARTS:
    printed = getattr(scheme, part)
    speed, allowed, efficiency = (
      f'{numbers[part][key]:.2f}' for key in _NUMBERS
    )
    paper = '' if printed is None else f'{printed:.2f}'
    cells += (speed, allowed, numbers[part]['by'], efficiency, paper)
  return cells


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
