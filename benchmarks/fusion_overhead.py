"""What fusion costs: a training and a decoding step beside the baseline's.

    python -m benchmarks.fusion_overhead [--schemes=NAME,NAME]

A scheme and the baseline take turns in one process; benchmarks/README.md says
how. Schemes are saved one by one: the same command resumes. One that fails is
reported and does not stop the others.
"""

import argparse
import functools
import gc
import statistics
import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import common
from benchmarks.contestants import FusionJaxStep, experiment, random_batches
from benchmarks.hlo_traffic import traffic
from benchmarks.schemes import Scheme, chosen, norms_of, schemes
from benchmarks.serving import limit_cores, timed
from benchmarks.sizes import END, SIZES, Size
from fusion_jax.config.flags import parse_arguments
from fusion_jax.config.presets import Row, changed
from fusion_jax.errors import CheckFailed, first_line
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.search.beam import LengthPenalty, beam_search
from fusion_jax.startup import one_line_errors, restart_tuned
from fusion_jax.tools.aot.matmul_flops import product_gflop

_BEAM = 4
_PARTS = ('train', 'decode')
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
    moved = traffic(self._search.as_text(), trips=steps)
    self.gbytes = sum(row.moved for row in moved) / 1e9

  def run(self, parameters: Parameters) -> None:
    hypotheses = self._search(parameters, *self._arguments)
    if int(hypotheses.lengths.max()) != self._steps:
      raise RuntimeError('the search ended before its last step')


class Programs:
  """The training step and the search of a scheme, by their names.

  `megabytes`: 2^20 bytes that a training step needs beside its arguments.
  """

  def __init__(self, size: Size, row: Row, sentences: int, steps: int):
    step = FusionJaxStep(size, changed(experiment(size), row))
    sources = size._replace(rows=sentences)
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


def beside(scheme: Programs, baseline: Programs, rounds: int) -> dict[str, Any]:
  """A scheme and its baseline: seconds, two a round, operations and bytes."""
  measured: dict[str, Any] = {
    'extra_parameters': scheme.parameters - baseline.parameters,
    'memory': scheme.megabytes / baseline.megabytes,
  }
  both = {'baseline': baseline, 'scheme': scheme}
  for part in _PARTS:
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(rounds):
      for name in ('baseline', 'scheme', 'scheme', 'baseline'):
        seconds[name].append(timed(both[name].run[part]))
    measured[part] = {
      'seconds': seconds,
      'gflop': {name: side.gflop[part] for name, side in both.items()},
      'gbytes': {name: side.gbytes[part] for name, side in both.items()},
    }
  return measured


def memory_rate() -> float:
  """10^9 bytes per second of reading an array and writing it in its place."""
  add_one = jax.jit(lambda x: x + 1, donate_argnums=0)
  array = [add_one(jnp.zeros(_LARGE // 4, jnp.float32))]

  def step() -> None:
    array[0] = jax.block_until_ready(add_one(array[0]))

  return 2 * _LARGE / 1e9 / statistics.median(timed(step) for _ in range(9))


def summary(measured: dict[str, Any], bandwidth: float) -> dict[str, Any]:
  """The speed relative to the baseline, what bounds it, and the efficiency.

  A step has to take as much longer as its products are more, as if the
  baseline did nothing else; or as the bytes take that the baseline does not
  move, beside its time.
  """
  seconds, gflop, gbytes = (
    measured[name] for name in ('seconds', 'gflop', 'gbytes')
  )
  both = zip(seconds['baseline'], seconds['scheme'], strict=True)
  speed = statistics.median(base / scheme for base, scheme in both)
  extra = (gbytes['scheme'] - gbytes['baseline']) / bandwidth
  slower = {
    'products': gflop['scheme'] / gflop['baseline'],
    'bytes': 1 + extra / statistics.median(seconds['baseline']),
  }
  by = max(slower, key=lambda name: slower[name])
  numbers = {'speed': speed, 'allowed': 1 / slower[by], 'by': by}
  return numbers | {'efficiency': speed * slower[by]}


def report(results: dict[str, Any], printed: Mapping[str, Scheme]) -> str:
  settings = results['settings']
  header = ('', 'parameters', 'memory')
  for part in _PARTS:
    header += (part, 'allowed', 'by', 'efficiency', 'paper')
  rows = [
    (
      name,
      f'{numbers["extra_parameters"]:+,}',
      f'{numbers["memory"]:.2f}',
      *(
        cell
        for part in _PARTS
        for cell in _cells(numbers[part], getattr(printed[name], part))
      ),
    )
    for name, numbers in results['summary'].items()
  ]
  shape = f'{settings["rows"]} x {settings["length"]}+{settings["length"]}'
  return (
    f'speed relative to the baseline: training steps of {shape}, decoding '
    f'steps of {settings["sentences"]} x beam {_BEAM}\n'
    f'{common.table(header, rows)}'
  )


def _cells(numbers: dict[str, Any], printed: float | None) -> tuple[str, ...]:
  speed, allowed, efficiency = (
    f'{numbers[name]:.2f}' for name in ('speed', 'allowed', 'efficiency')
  )
  paper = '' if printed is None else f'{printed:.2f}'
  return speed, allowed, numbers['by'], efficiency, paper


def _add_rounds(
  results: dict[str, Any],
  missing: dict[str, Scheme],
  size: Size,
  arguments: argparse.Namespace,
) -> list[str]:
  """Measures schemes; of those that failed, names and reasons."""

  @functools.cache
  def plain(norm: str) -> Programs:
    return programs({'model.norm': norm})

  def programs(row: Row) -> Programs:
    row = {'model.compute_dtype': arguments.dtype} | row
    return Programs(size, row, arguments.sentences, arguments.steps)

  failed = []
  for name, scheme in missing.items():
    norm = norms_of(scheme.row)[-1]
    try:
      fused = programs({'model.norm': norm} | scheme.row)
      measured = beside(fused, plain(norm), arguments.rounds)
    except RuntimeError as error:  # Of XLA: too little memory, for example.
      failed.append(f'{name}: {first_line(error)}')
      common.log(failed[-1])
    else:
      results['rounds'][name] = {'norm': norm} | measured
      common.write_results(arguments.output, results)
      common.log(f'{name}: measured')
    fused = None
    jax.clear_caches()
    gc.collect()
  return failed


@one_line_errors
def main(argv: list[str]) -> None:
  arguments = _parse(argv)
  limit_cores()
  size = SIZES[arguments.size]
  length = arguments.length or size.length
  size = size._replace(rows=arguments.rows, length=length)
  flags = ('dtype', 'sentences', 'steps', 'rounds')
  settings = size._asdict() | {name: getattr(arguments, name) for name in flags}
  results = common.resume(arguments.output, settings, arguments.fresh)
  every, rounds = schemes(size.layers), results['rounds']
  wanted = chosen(every, arguments.schemes)
  missing = {name: wanted[name] for name in wanted if name not in rounds}
  if 'bandwidth' not in results:
    results['bandwidth'] = memory_rate()
  failed = _add_rounds(results, missing, size, arguments)
  results['summary'] = {
    name: {key: measured[key] for key in ('extra_parameters', 'memory')}
    | {part: summary(measured[part], results['bandwidth']) for part in _PARTS}
    for name, measured in rounds.items()
  }
  common.write_results(arguments.output, results)
  print(report(results, every))
  if failed:
    raise CheckFailed('; '.join(failed))


def _parse(argv: list[str]) -> argparse.Namespace:
  output = common.RESULTS / 'fusion_overhead.json'
  parser = common.make_parser(__doc__, output)
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


if __name__ == '__main__':
  restart_tuned()
  sys.exit(main(sys.argv[1:]))
