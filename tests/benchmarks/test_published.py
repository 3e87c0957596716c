"""The tables of the published comparison are those of its results."""

import math
import shutil

import pytest

from benchmarks import published
from benchmarks.serving import ROOT


@pytest.mark.parametrize(
  ('printed', 'gains', 'verdict'),
  [
    (0.5, [], 'not trained'),
    (0.5, [0, 0], 'undecided'),
    (0.5, [0, 1], 'confirmed'),
    (0.5, [-1], 'refuted'),
    (-0.5, [-1], 'confirmed'),
    (0.5, [-1, 1], 'depends'),
  ],
)
def test_only_clear_differences_confirm_or_refute(printed, gains, verdict):
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
