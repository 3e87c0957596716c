"""The tables of the published comparison are those of its results."""

import math
import shutil

import pytest

from benchmarks import published
from benchmarks.serving import ROOT


@pytest.mark.parametrize(
  ('printed', 'gains', 'verdict'),
  [
    (0.5, {}, 'undecided'),
    (0.5, {'pre': [0, 0], 'post': [1, -1]}, 'for: post'),
    (0.5, {'pre': [-1, 0], 'post': [0, -1]}, 'against: pre and post (loss)'),
    (-0.5, {'pre': [-1, 0], 'post': [1, 0]}, 'for: pre; against: post'),
  ],
)
def test_clear_differences_are_for_or_against_a_paper(printed, gains, verdict):
  assert published.verdict(printed, gains) == verdict


def test_the_deviation_is_of_all_settings():
  # Deviations: plain 0.1 * sqrt(2), of one freedom; gtrans 0.3 * sqrt(2).
  def runs(*bleu):
    tests = [{'t': {'bleu': x, 'chrf': x}} for x in bleu]
    return {n: {'validation_nll': 1.0, 'tests': x} for n, x in enumerate(tests)}

  one = published.Setting('one', {'plain': runs(30.0, 30.2)}, {})
  others = {'start': runs(30.0, 30.4)}
  two = published.Setting('two', {'plain': runs(31.0, 31.6)}, others)
  metrics = published.measured(two, [one, two])
  pooled = metrics['BLEU, t'].pooled
  assert pooled.freedom == 2
  assert pooled.deviation == pytest.approx(math.sqrt((0.02 + 0.18) / 2))
  assert metrics['BLEU, t'].differences['start'].mean == pytest.approx(-1.1)


def test_the_pages_have_the_tables_of_the_results(tmp_path):
  docs = ROOT / 'docs'
  pages = 'results.md', 'comparison_tables.md'
  for page in pages:
    shutil.copy(docs / page, tmp_path)
  published.write(tmp_path)
  for page in pages:
    text = (tmp_path / page).read_text('utf-8')
    assert text == (docs / page).read_text('utf-8')
