"""Orders in which the papers print the schemes of this comparison.

Only neighbours of an order, among the schemes that are finished, are compared:
if each is above the one before it, the whole order holds.
"""

import itertools
from collections.abc import Container, Iterator, Sequence
from typing import Literal, NamedTuple

from benchmarks.schemes import BASELINE

# p below this makes a difference clear.
LEVEL = 0.05

Verdict = Literal['confirmed', 'refuted', 'undecided']


class Order(NamedTuple):
  """Scores of one table of a paper, from the lowest to the highest.

  source: paper, table and task.
  scores: BLEU as printed, by scheme.
  """

  source: str
  scores: dict[str, float]


class Neighbours(NamedTuple):
  """Two schemes, of which a paper prints the second one above the first.

  source: of the order.
  lower, higher: the schemes.
  printed: how much BLEU there is between them.
  """

  source: str
  lower: str
  higher: str
  printed: float


# With the routings in the form that the paper prints.
_DOU_2019 = Order(
  'Dou et al. 2019, Table 1, WMT14 En-De',
  {
    BASELINE: 27.31,
    'linear': 27.73,
    'dynamic_routing_paper': 28.22,
    'dynamic_combination': 28.33,
    'em_routing_paper': 28.81,
  },
)
ORDERS = (
  Order(
    'Dou et al. 2018, Table 1, WMT14 En-De',
    {
      BASELINE: 27.64,
      'dense': 27.94,
      'linear': 28.09,
      'iterative': 28.61,
      'hierarchical': 28.63,
      'hierarchical_diversity': 28.78,
    },
  ),
  Order(
    'Dou et al. 2018, Table 1, WMT14 En-De',
    {BASELINE: 27.64, 'multi_layer_2': 28.58, 'multi_layer_3': 28.62},
  ),
  Order(
    'Wang et al. 2018, Table 2, IWSLT14 De-En, 3+3 layers',
    {
      'feed_forward': 32.66,
      BASELINE: 32.67,
      'encoder_feed_forward': 33.31,
      'hops': 33.46,
      'feed_forward_hops': 33.59,
    },
  ),
  Order(
    'Wang et al. 2018, Table 3, NIST Zh-En, 6+6 layers',
    {'encoder_feed_forward': 40.34, BASELINE: 41.20, 'decoder_hops': 41.76},
  ),
  _DOU_2019,
  Order(
    f'{_DOU_2019.source}, default form',
    {name.removesuffix('_paper'): b for name, b in _DOU_2019.scores.items()},
  ),
  Order(
    'Emelin et al. 2019, Table 1, En-De',
    {BASELINE: 31.0, 'lexical': 31.5, 'feature_fusion': 32.0},
  ),
  Order(
    'Emelin et al. 2019, Table 4, En-De',
    {
      BASELINE: 31.0,
      'non_lexical': 31.3,
      'cross': 31.5,
      'feature_fusion': 32.0,
    },
  ),
  # MLRF is left out of these: the paper does not say in which form it was run.
  Order(
    'Yang et al. 2022, Table I, NIST Zh-En',
    {
      BASELINE: 40.34,
      'rezero': 40.52,
      'dlcl': 41.02,
      'transparent': 41.30,
      'gtrans': 42.31,
    },
  ),
  Order(
    'Yang et al. 2022, Table II, IWSLT14 De-En',
    {
      'rezero': 33.67,
      BASELINE: 34.07,
      'dlcl': 34.40,
      'transparent': 34.54,
      'gtrans': 35.32,
    },
  ),
  Order(
    'Yang et al. 2022, Table II, WMT14 En-De',
    {
      'rezero': 28.22,
      'transparent': 28.64,
      BASELINE: 28.82,
      'dlcl': 29.42,
      'gtrans': 30.01,
    },
  ),
  Order(
    'Yang et al. 2022, Table VIII, IWSLT14 De-En, 12+12 layers',
    {
      BASELINE: 34.22,
      'gtrans_no_decoder': 34.72,
      'gtrans_no_encoder': 35.12,
      'gtrans': 35.36,
    },
  ),
)


def neighbours(finished: Container[str]) -> Iterator[Neighbours]:
  """All pairs that stand next to each other in an order of finished schemes."""
  for source, scores in ORDERS:
    there = [(name, bleu) for name, bleu in scores.items() if name in finished]
    for (lower, below), (higher, above) in itertools.pairwise(there):
      yield Neighbours(source, lower, higher, above - below)


def verdict(found: Sequence[tuple[float | None, float | None]]) -> Verdict:
  """What the difference and p over seeds of each test set say of a pair.

  All test sets must agree, each with p < 0.05; None: it is not known. The
  bootstrap of one seed cannot decide: it compares two trained models, and
  another seed can turn their difference round.
  """
  signs = {
    None if difference is None or p is None or p >= LEVEL else difference > 0
    for difference, p in found
  }
  if signs == {True}:
    return 'confirmed'
  return 'refuted' if signs == {False} else 'undecided'
