"""The tables of made-up results, and their place in the guide."""

import json

import numpy as np
import pytest
from scipy import stats
from small_comparison import (
  DENSE,
  LINEAR,
  NUMBERS,
  PLAIN,
  WIDE,
  planned,
  recipe,
)

from benchmarks.comparison.costs import costs
from benchmarks.comparison.figure import draw
from benchmarks.comparison.orderings import ORDERS, neighbours, verdict
from benchmarks.comparison.publish import publish, put_into
from benchmarks.comparison.report import coupling_entropies, report
from benchmarks.comparison.results import Results
from benchmarks.comparison.tables import tables
from benchmarks.comparison.texts import Text
from benchmarks.schemes import BASELINE, PAPERS, schemes
from fusion_jax.errors import InputError
from fusion_jax.evaluation.sentence_statistics import corpus_bleu, statistics_of

REFERENCES = tuple(f'Das ist die Zeile {n} von {n + 1} .' for n in range(40))
WRONG = tuple(f'Dies war eine {n} .' for n in range(40))
TELEMETRY = {
  'encoder/read_out/coupling_entropy_1': 1.5,
  'encoder/read_out/coupling_entropy_0': 2.0,
  'decoder/read_out/coupling_entropy_0': 0.25,
  'decoder/read_out/coupling_diversity_0': 0.5,
}
# Times of the steps of a scheme.
STEPS = {'linear': {'train': 1.25, 'decode': 2.0}}


def result(bleu, loss, parameters=1_000, **numbers):
  scores = {'bleu': bleu, 'chrf': 20 + bleu, 'bleu_signature': 'made up'}
  own = {'validation_nll': loss, 'parameters': parameters}
  return NUMBERS | own | {'tests': {'news': scores}} | numbers


@pytest.fixture
def comparison(tmp_path):
  """A recipe, runs of two seeds, and results of none of them."""
  own = recipe(tmp_path)
  runs = planned(own, (PLAIN, LINEAR, WIDE), seeds=(0, 1))
  return own, runs, Results(tmp_path / 'results', own.digests())


def tables_of(comparison):
  _, runs, results = comparison
  tests = {'news': Text(None, REFERENCES)}
  return tables(list(runs.values()), results, tests, 'de')


def add(comparison, name, lines, numbers):
  _, runs, results = comparison
  results.add(runs[name], numbers, {'news': lines})


def add_all(comparison):
  fused = {'parameters': 1_250, 'fusion_rate': 0.3, 'telemetry': TELEMETRY}
  fused['start'] = {'encoder': 'baseline', 'decoder': 'fresh'}
  for name, lines, numbers in (
    ('continued/pre/none-0', WRONG, result(30.0, 2.0)),
    ('continued/pre/none-1', WRONG, result(32.0, 2.2)),
    ('continued/pre/linear-0', REFERENCES, result(33.0, 1.75, **fused)),
    ('continued/pre/linear-1', REFERENCES, result(36.0, 1.85, **fused)),
    ('continued/pre/wide-0', WRONG, result(30.5, None, 1_300)),
  ):
    add(comparison, name, lines, numbers)


def test_a_line_is_beside_the_continued_plain_model(comparison):
  add_all(comparison)
  continued, scratch = tables_of(comparison)
  none, linear, wide = continued.lines
  assert none.extra_parameters == 0
  assert linear.extra_parameters == 250
  assert linear.rate == 0.3
  # (1.75 + 1.85) / 2
  assert linear.nll.seeds.mean == pytest.approx(1.8)
  # 1.8 - (2.0 + 2.2) / 2
  assert linear.nll.difference == pytest.approx(-0.3)
  welch = stats.ttest_ind([2.0, 2.2], [1.75, 1.85], equal_var=False)
  assert linear.nll.over_seeds == pytest.approx(welch.pvalue)
  assert none.nll.difference is None
  bleu = linear.bleu['news']
  # (33 + 36) / 2 - (30 + 32) / 2, deviation 3 / sqrt(2)
  assert bleu.difference == pytest.approx(3.5)
  assert bleu.seeds.deviation == pytest.approx(3 / 2**0.5)
  welch = stats.ttest_ind([30.0, 32.0], [33.0, 36.0], equal_var=False)
  assert bleu.over_seeds == pytest.approx(welch.pvalue)
  # No sample of 1,000 is on the other side: (0 + 1) / (1,000 + 1).
  assert bleu.bootstrap == pytest.approx(1 / 1_001)
  assert none.bleu['news'].difference is None
  # Only seed 0 is there of both: 30.5 - 30.
  assert wide.bleu['news'].difference == pytest.approx(0.5)
  assert wide.bleu['news'].over_seeds is None
  assert wide.nll is None
  # Only seed 0 is there of both: 33 - 30.5.
  assert linear.to_wide['news'].difference == pytest.approx(2.5)
  chrf = linear.chrf['news']
  assert chrf.seeds.mean == pytest.approx(54.5)
  # chrF2 is BLEU and 20 here.
  assert chrf.difference == pytest.approx(3.5)
  assert chrf.over_seeds == pytest.approx(bleu.over_seeds)
  assert chrf.bootstrap is None
  assert [run.name for run in continued.missing] == ['continued/pre/wide-1']
  assert scratch.lines == []


def test_the_same_translations_do_not_differ(comparison):
  add(comparison, 'continued/pre/none-0', WRONG, result(30.0, 2.0))
  add(comparison, 'continued/pre/linear-0', WRONG, result(30.0, 2.0))
  linear = tables_of(comparison)[0].lines[1]
  assert linear.bleu['news'].difference == 0
  assert linear.bleu['news'].bootstrap == 1


def test_without_a_baseline_there_are_no_differences(comparison):
  add(comparison, 'continued/pre/linear-0', WRONG, result(30.0, 2.0))
  (linear,) = tables_of(comparison)[0].lines
  assert linear.extra_parameters is None
  assert linear.bleu['news'].difference is None


def test_the_report_has_every_number_and_what_is_missing(comparison):
  add_all(comparison)
  own, _, results = comparison
  text = report(own, results, tables_of(comparison), STEPS)
  lines = text.splitlines()
  linear, others = [line for line in lines if line.startswith('| `linear`')]
  line = tables_of(comparison)[0].lines[1]
  p = f'{line.bleu["news"].over_seeds:.3f}'
  assert linear == (
    '| `linear` | +250 | 0.3 | 1.8000 ± 0.0707 | -0.3000 | '
    f'{line.nll.over_seeds:.3f} | 34.50 ± 2.12 | +3.50 | <0.001 | '
    f'{p} | <0.001 | 2 |'
  )
  # chrF2 is BLEU and 20 here.
  assert others == f'| `linear` | 54.50 ± 2.12 | +3.50 | {p} | 1.25 | 2.00 |'
  wide, others = [line for line in lines if line.startswith('| `wide`')]
  assert wide.startswith(
    '| `wide` | +300 | – | not finite | – | – | 30.50 | +0.50 |'
  )
  assert wide.endswith(' | – | – | 1 |')
  assert others == '| `wide` | 50.50 | +0.50 | – | – | – |'
  assert '- `linear`: encoder 2.00, 1.50; decoder 0.25' in lines
  assert 'Missing with seed 1: `wide`.' in lines
  # none, wide and linear from scratch, two seeds each.
  assert 'None of 6 runs is finished yet.' in lines
  assert 'in one stack or both of `linear`.' in text.replace('\n', ' ')
  assert own.digest('pre')[:12] in text
  # The same machine for both seeds.
  assert lines[-1].endswith('cpu 1, jax 0.10.2 (seed 0, 1).')


def test_the_report_says_which_seeds_a_machine_trained(comparison):
  add(comparison, 'continued/pre/none-0', WRONG, result(30.0, 2.0))
  elsewhere = result(32.0, 2.2, cpu='another one')
  add(comparison, 'continued/pre/none-1', WRONG, elsewhere)
  text = report(comparison[0], comparison[2], tables_of(comparison), STEPS)
  assert text.replace('\n', ' ').endswith(
    'trained on a processor, 2 cores, cpu 1, jax 0.10.2 (seed 0); '
    'another one, 2 cores, cpu 1, jax 0.10.2 (seed 1). '
  )


def test_an_order_of_a_paper_is_found_again(comparison):
  tables = add_order(comparison, (30.0, 30.2), (33.0, 33.2))
  (pair,) = tables[0].pairs
  # Of two neighbours in Dou et al. (2018), Table 1: 28.09 - 27.94.
  assert pair.printed.printed == pytest.approx(0.15)
  assert pair.bleu['news'].difference == pytest.approx(3.0)
  welch = stats.ttest_ind([30.0, 30.2], [33.0, 33.2], equal_var=False)
  text = report(comparison[0], comparison[2], tables, {})
  row = f'| `linear` | +0.15 | +3.00 | {welch.pvalue:.3f} | confirmed |'
  assert row in text


@pytest.mark.parametrize(
  ('lower', 'higher', 'found'),
  [
    ((33.0, 33.2), (30.0, 30.2), 'refuted'),
    ((33.0, 30.2), (30.0, 33.2), 'undecided'),
  ],
)
def test_an_order_of_a_paper_is_not_found_again(
  comparison, lower, higher, found
):
  tables = add_order(comparison, lower, higher)
  assert f' | {found} |' in report(comparison[0], comparison[2], tables, {})


def test_one_seed_decides_no_order(comparison):
  tables = add_order(comparison, (30.0,), (33.0,))
  text = report(comparison[0], comparison[2], tables, {})
  row = '| `dense` | `linear` | +0.15 | +3.00 | <0.001 | undecided |'
  assert row in text


def add_order(comparison, lower, higher):
  """The tables with dense and linear of these BLEU, one for each seed."""
  own, _, results = comparison
  runs = planned(own, (PLAIN, DENSE, LINEAR), seeds=(0, 1))
  for name, lines, scores in (
    ('dense', WRONG, lower),
    ('linear', REFERENCES, higher),
  ):
    for seed, bleu in enumerate(scores):
      run = runs[f'continued/pre/{name}-{seed}']
      results.add(run, result(bleu, 2.0), {'news': lines})
  tests = {'news': Text(None, REFERENCES)}
  return tables(list(runs.values()), results, tests, 'de')


def test_orders_name_schemes_that_are_compared_and_rise():
  names = schemes(6)
  for source, scores in ORDERS:
    assert scores.keys() <= names.keys(), source
    assert list(scores.values()) == sorted(scores.values()), source


def test_an_unfinished_scheme_does_not_hide_those_around_it():
  (pair,) = (x for x in neighbours({BASELINE, 'linear'}) if '2018' in x.source)
  # Dou et al. (2018), Table 1: 28.09 - 27.64.
  assert (pair.lower, pair.higher) == (BASELINE, 'linear')
  assert pair.printed == pytest.approx(0.45)


def test_all_test_sets_must_agree_on_an_order():
  assert verdict([(0.1, 0.01), (0.2, 0.04)]) == 'confirmed'
  assert verdict([(0.1, 0.01), (0.2, 0.06)]) == 'undecided'
  assert verdict([(-0.1, 0.01), (-0.2, 0.04)]) == 'refuted'
  assert verdict([(-0.1, 0.01), (0.2, 0.01)]) == 'undecided'
  assert verdict([(0.1, 0.01), (0.2, None)]) == 'undecided'
  assert verdict([]) == 'undecided'


def test_with_one_seed_there_is_no_column_of_seeds(comparison):
  add(comparison, 'continued/pre/none-0', WRONG, result(30.0, 2.0))
  own, _, results = comparison
  text = report(own, results, tables_of(comparison), STEPS)
  assert '| `none` | +0 | 2.0000 | 30.00 | – | – |' in text.splitlines()


def test_the_head_tells_of_continued_runs_where_there_are_any(comparison):
  own, _, results = comparison
  add(comparison, 'plain/pre/none-0', WRONG, result(30.0, 2.0))
  texts = [report(own, results, tables_of(comparison), {})]
  add(comparison, 'continued/pre/none-0', WRONG, result(30.0, 2.0))
  texts.append(report(own, results, tables_of(comparison), {}))
  assert ['fresh Adam' in text.replace('\n', ' ') for text in texts] == [
    False,
    True,
  ]


def test_every_scheme_is_of_one_paper():
  listed = [name for own in PAPERS.values() for name in own]
  assert sorted(listed) == sorted(set(schemes(6)) - {BASELINE})


def test_the_figure_has_a_row_for_each_scheme(comparison, tmp_path):
  add_all(comparison)
  path = tmp_path / 'overhead.json'
  speeds = {'train': {'speed': 0.8}, 'decode': {'speed': 0.5}}
  path.write_text(json.dumps({'summary': {'linear': speeds}}))
  of_steps = costs([path])
  assert of_steps == {'linear': {'train': 1.25, 'decode': 2.0}}
  table = tables_of(comparison)[0]
  news, times = draw(table, of_steps).axes
  names = [label.get_text() for label in news.get_yticklabels()]
  assert names == ['linear', 'wide']
  # Differences of 3.5 and 0.5 BLEU, in the order of the names.
  points = [line[0].get_xydata()[0].tolist() for line in news.containers]
  assert points == [[pytest.approx(3.5), 0], [pytest.approx(0.5), 1]]
  # 33 - 30 and 36 - 32; `wide` has one seed, and no cross.
  crosses = [x for x in news.lines if x.get_marker() == 'x']
  assert [x.get_xdata().tolist() for x in crosses] == [[3.0, 4.0], []]
  train, decode = (line.get_xydata().tolist() for line in times.lines[:2])
  assert (train, decode) == ([[1.25, 0]], [[2.0, 0]])


def test_the_interval_of_a_difference_holds_most_samples(comparison):
  mixed = tuple(WRONG[n] if n % 3 else REFERENCES[n] for n in range(len(WRONG)))
  add(comparison, 'continued/pre/none-0', mixed, result(30.0, 2.0))
  add(comparison, 'continued/pre/linear-0', REFERENCES, result(33.0, 2.0))
  linear = tables_of(comparison)[0].lines[1].bleu['news']
  counts = [
    statistics_of([lines], [REFERENCES], 'de')[0]['BLEU']
    for lines in (REFERENCES, mixed)
  ]
  generator = np.random.default_rng(1)
  differences = []
  for _ in range(2_000):
    lines = generator.choice(len(REFERENCES), len(REFERENCES))
    scores = [corpus_bleu(each[lines].sum(0)[None])[0] for each in counts]
    differences.append(scores[0] - scores[1])
  low, high = np.percentile(differences, [2.5, 97.5])
  assert high - low > 1
  assert linear.interval == pytest.approx((high - low) / 2, rel=0.1)


def test_entropies_are_in_the_order_of_the_iterations():
  assert coupling_entropies(TELEMETRY | {'encoder/gates_0': 1.0}) == {
    'encoder': [2.0, 1.5],
    'decoder': [0.25],
  }


def test_the_section_of_a_corpus_is_replaced(tmp_path):
  path = tmp_path / 'tables.md'
  begin, end = (
    '<!-- comparison of schemes: deen -->',
    '<!-- end of the comparison -->',
  )
  before = (
    f'Before.\n\n<!-- comparison of schemes: multi30k -->\n\nother\n\n{end}\n\n'
  )
  path.write_text(f'{before}{begin}\n\nold\n\n{end}\n\nAfter.\n')
  for text in ('first\n', 'second\n'):
    put_into(path, 'deen', text)
    assert path.read_text() == f'{before}{begin}\n\n{text}\n{end}\n\nAfter.\n'
  with pytest.raises(InputError, match='comparison of schemes: kyoto'):
    put_into(path, 'kyoto', 'text')
  path.write_text(f'Before.\n\n{begin}\n\nold\n')
  with pytest.raises(InputError, match='end of the comparison'):
    put_into(path, 'deen', 'text')
  assert path.read_text() == f'Before.\n\n{begin}\n\nold\n'
  with pytest.raises(InputError, match='no such file'):
    put_into(tmp_path / 'none.md', 'deen', 'text')


def test_only_the_comparison_on_multi30k_is_drawn(comparison, tmp_path):
  own, _, _ = comparison
  add(comparison, 'plain/pre/none-0', WRONG, result(30.0, 2.0))
  add(comparison, 'scratch/pre/linear-0', REFERENCES, result(33.0, 1.75))
  (tmp_path / 'docs').mkdir()
  other = recipe(tmp_path, corpus='other')
  for each, drawn in ((other, []), (own, ['comparison_scratch.svg'])):
    page = (
      f'<!-- comparison of schemes: {each.corpus} -->\n\nold\n\n'
      '<!-- end of the comparison -->\n'
    )
    (tmp_path / 'docs/comparison_tables.md').write_text(page)
    publish(tmp_path, each, tables_of(comparison), 'new\n', STEPS)
    written = (tmp_path / 'docs/comparison_tables.md').read_text()
    assert written == page.replace('old', 'new')
    assert [path.name for path in (tmp_path / 'docs').glob('*.svg')] == drawn
