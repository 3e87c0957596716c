"""What probing all layers costs beside one training pass over the same text.

    python -m benchmarks.probes [--width=128] [--sentences=10000]

A random model of 6+6 layers and random sentences whose subwords are as frequent
as words are (Zipf). A training pass is the median of timed steps times the
batches of the text; the probes are timed as a whole, all epochs, the stopping
and the test with them. Compilation is taken off both. The exit code is 1 where
the probes take more than twice the pass.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.common import RESULTS, circumstances, write_results
from benchmarks.fusion_jax_step import (
  CompilationCounter,
  FusionJaxStep,
  experiment,
)
from benchmarks.serving import limit_cores, timed
from benchmarks.sizes import Size
from fusion_jax.analysis.probes.training import KINDS
from fusion_jax.analysis.probes.view import measure
from fusion_jax.analysis.run_with_text import RunWithText, TextChoice, TextPair
from fusion_jax.config.flags import parse_arguments
from fusion_jax.errors import CheckFailed
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.startup import one_line_errors, use_huge_pages

_END, _SPECIAL = 3, 4
_MOST = 2.0


def random_text(size: Size, sentences: int) -> tuple[TextPair, ...]:
  """Pairs of `size.length` subwords a side, the end symbol among them."""
  random = np.random.default_rng(0)
  ranks = np.arange(1, size.vocabulary - _SPECIAL + 1)
  shares = 1 / ranks
  ids = _SPECIAL + random.choice(
    len(ranks), (sentences, 2, size.length), p=shares / shares.sum()
  )
  ids[..., -1] = _END
  rows = ids.astype(np.int32)
  return tuple(TextPair(*pair, line) for line, pair in enumerate(rows, start=1))


@one_line_errors
def main(argv: list[str]) -> None:
  """Measures, writes the results and prints them."""
  arguments = _parse(argv)
  limit_cores()
  width = arguments.width
  size = Size(
    width, 4 * width, width // 32, 6, arguments.vocabulary, rows=64, length=25
  )
  config = experiment(size)
  step = FusionJaxStep(size, config)
  step.step()
  seconds = [timed(step.step) for _ in range(arguments.steps)]
  training = statistics.median(seconds) * arguments.sentences / size.rows
  run = TrainedModel(config, step.model, step.parameters, 0, None, None)
  subject = RunWithText(Path(), run, TextChoice())
  subject.pairs = random_text(size, arguments.sentences)
  counter, begin = CompilationCounter(), time.perf_counter()
  numbers = measure(subject)
  probing = time.perf_counter() - begin - counter.seconds
  results = circumstances() | {
    'settings': {name: str(value) for name, value in vars(arguments).items()},
    'protocol': numbers['protocol'],
    'classes': numbers['encoder']['classes'],
    'embedding_accuracy': {
      kind: numbers['encoder'][kind]['accuracy'][0] for kind in KINDS
    },
    'training_seconds': training,
    'probing_seconds': probing,
    'compile_seconds': counter.seconds,
    'ratio': probing / training,
  }
  write_results(arguments.output or RESULTS / 'probes.json', results)
  print(
    f'one training pass {training:.1f} s; all probes {probing:.1f} s in '
    f'{numbers["protocol"]["epochs"]} epochs, and {counter.seconds:.1f} s to '
    f'compile: {results["ratio"]:.2f} times the pass'
  )
  if results['ratio'] > _MOST:
    raise CheckFailed(f'more than {_MOST:g} times the training pass')


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add('--width', type=int, default=128)
  add('--vocabulary', type=int, default=8_000)
  add('--sentences', type=int, default=10_000)
  add('--steps', type=int, default=10, help='of training that are timed')
  add('--output', type=Path)
  return parse_arguments(argv, parser)


if __name__ == '__main__':
  use_huge_pages()
  sys.exit(main(sys.argv[1:]))
