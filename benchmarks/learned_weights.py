"""How alike the weights are that a fusion has learned in different runs.

    python -m benchmarks.learned_weights [--scheme=transparent] \
        [--corpora=multi30k,multi30k_mlrf]

Takes the pre-norm runs from scratch in benchmarks/results/comparison: for every
two of them, the correlation of the weights at the end of training, and the
largest difference of one weight. Prints their ranges over the pairs of runs of
one corpus and of two, so that what a start changes can be told from what a seed
changes.
"""

import itertools
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from benchmarks.common import make_parser, markdown
from benchmarks.comparison.results import from_scratch
from fusion_jax.errors import InputError
from fusion_jax.startup import one_line_errors


class Likeness(NamedTuple):
  """Pearson's correlation of the weights, and their largest difference."""

  correlation: float
  difference: float


def likeness(
  first: Mapping[str, float], second: Mapping[str, float]
) -> Likeness:
  """Compare weights of the same names."""
  if others := first.keys() ^ second.keys():
    raise InputError(f'{", ".join(sorted(others))} in only one of two runs')
  pairs = [(first[name], second[name]) for name in first]
  return Likeness(
    statistics.correlation(*zip(*pairs, strict=True)),
    max(abs(one - other) for one, other in pairs),
  )


def learned(
  corpus: str, runs: Iterable[Mapping[str, Any]], scheme: str
) -> list[dict[str, float]]:
  """Return the weights of all seeds of a scheme in the results of a corpus."""
  found = [run['telemetry'] for run in runs if run['scheme'] == scheme]
  if not found:
    raise InputError(f'{corpus}: no pre-norm run of {scheme!r} from scratch')
  if len(found[0]) < 2:
    raise InputError(f'{corpus}: {scheme!r} logs no weights')
  return found


@one_line_errors
def main(argv: list[str]) -> None:
  parser = make_parser(__doc__)
  add = parser.add_argument
  add('--scheme', default='transparent', help='of the comparison')
  add('--corpora', default='multi30k,multi30k_mlrf', help='of its results')
  arguments = parser.parse_args(argv)
  runs = [
    (corpus, weights)
    for corpus in arguments.corpora.split(',')
    for weights in learned(corpus, from_scratch(corpus), arguments.scheme)
  ]
  found = defaultdict(list)
  for (one, first), (other, second) in itertools.combinations(runs, 2):
    found[one, other].append(likeness(first, second))
  rows = [
    (*corpora, str(len(pairs)), *map(_range, zip(*pairs, strict=True)))
    for corpora, pairs in found.items()
  ]
  header = ('run', 'other run', 'pairs', 'correlation', 'largest difference')
  print(markdown(header, rows))


def _range(values: tuple[float, ...]) -> str:
  least, most = min(values), max(values)
  return f'{least:.3f} to {most:.3f}' if len(values) > 1 else f'{least:.3f}'


if __name__ == '__main__':
  main(sys.argv[1:])
