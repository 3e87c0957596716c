"""Runs from scratch, each beside others that start as it does."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.comparison.noise import Noise, pooled
from benchmarks.comparison.results import from_scratch
from benchmarks.comparison.tables import beside
from benchmarks.schemes import BASELINE, PAPERS
from fusion_jax.errors import InputError

# Results of finished runs of one scheme, by seed.
Runs = Mapping[int, Mapping[str, Any]]
# Those of one start, by scheme.
Found = Mapping[str, Runs]


class Start(NamedTuple):
  """Models of one norm whose matrices start alike.

  norm: of the models.
  corpus: of the recipe, with all layers.
  shallow: the corpus with two layers in the encoder.
  """

  norm: str
  corpus: str
  shallow: str


STARTS = {
  "pre-norm, Glorot's matrices": Start('pre', 'multi30k', 'multi30k_shallow'),
  'pre-norm, smaller matrices': Start(
    'pre', 'multi30k_mlrf', 'multi30k_shallow_mlrf'
  ),
  'post-norm, smaller matrices': Start('post', 'multi30k', 'multi30k_shallow'),
}
# The plain models of the shallow corpora.
SHALLOW = 'two encoder layers'


def gathered(start: Start) -> Found:
  """Read the results that are there."""
  found: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
  for run in from_scratch(start.corpus, start.norm):
    found[run['scheme']][run['seed']] = run
  for run in from_scratch(start.shallow, start.norm):
    if run['scheme'] == BASELINE:
      found[SHALLOW][run['seed']] = run
  return found


def shown(starts: Mapping[str, Found]) -> list[str]:
  """Return the schemes of at least two starts, the plain models first."""
  known = BASELINE, SHALLOW, *(name for own in PAPERS.values() for name in own)
  return [
    name for name in known if sum(name in own for own in starts.values()) > 1
  ]


class Difference(NamedTuple):
  """What a scheme has more than another, over the seeds of both.

  mean: over the seeds.
  p_value: of a t-test with the noise; None without noise.
  seeds: their number.
  """

  mean: float
  p_value: float | None
  seeds: int


class Measure(NamedTuple):
  """A number that every run has.

  name: with its unit.
  of: reads it from the results of a run.
  digits: that are shown after the point.
  noise: of all runs together; None where no scheme has two seeds.
  """

  name: str
  of: Callable[[Mapping[str, Any]], float]
  digits: int
  noise: Noise | None = None

  def values(self, runs: Runs) -> dict[int, float]:
    """Read the number of every run, by its seed."""
    return {seed: self.of(run) for seed, run in runs.items()}

  def beside(self, ours: Runs, theirs: Runs) -> Difference | None:
    """Compare two schemes; None without a common seed."""
    if not ours:
      return None
    score = beside(self.values(ours), self.values(theirs))
    if score.difference is None:
      return None
    seeds = len(score.differences)
    p = self.noise and self.noise.p_value(score.difference, seeds)
    return Difference(score.difference, p, seeds)


def test_sets(starts: Mapping[str, Found]) -> list[str]:
  """Return the test sets of the first plain model."""
  for start, found in starts.items():
    if BASELINE not in found:
      raise InputError(f'{start}: no plain model from scratch is finished')
  first = next(iter(starts.values()))[BASELINE]
  return list(next(iter(first.values()))['tests'])


def measures(starts: Mapping[str, Found]) -> list[Measure]:
  """Return the validation loss, and BLEU on each test set."""
  loss = Measure('validation loss, nats', lambda run: run['validation_nll'], 3)
  every = [loss, *(_bleu(test) for test in test_sets(starts))]
  groups = [runs for found in starts.values() for runs in found.values()]
  return [
    each._replace(
      noise=pooled([*each.values(runs).values()] for runs in groups)
    )
    for each in every
  ]


def _bleu(test: str) -> Measure:
  return Measure(f'BLEU, {test}', lambda run: run['tests'][test]['bleu'], 2)
