"""The tables of made-up results, and their place in the guide."""

import pytest
from scipy import stats
from small_comparison import LINEAR, NUMBERS, PLAIN, WIDE, planned, recipe

from benchmarks.comparison.report import Tables, put_into, report
from benchmarks.comparison.runs import Results, Text
from fusion_jax.errors import InputError

REFERENCES = tuple(f'Das ist die Zeile {n} von {n + 1} .' for n in range(40))
WRONG = tuple(f'Dies war eine {n} .' for n in range(40))


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
  return Tables(results, tests, 'de').of(list(runs.values()))


def add(comparison, name, lines, numbers):
  _, runs, results = comparison
  results.add(runs[name], numbers, {'news': lines})


def add_all(comparison):
  fused = {'parameters': 1_250, 'fusion_rate': 0.3}
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
  assert (none.extra, linear.extra) == (0, 250)
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
  # chrF2 is BLEU and 20 here.
  assert linear.chrf['news'].seeds.mean == pytest.approx(54.5)
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
  assert linear.extra is None
  assert linear.bleu['news'].difference is None


def test_the_report_has_every_number_and_what_is_missing(comparison):
  add_all(comparison)
  own, _, results = comparison
  tables = tables_of(comparison)
  text = report(own, results, tables)
  lines = text.splitlines()
  (linear,) = (line for line in lines if line.startswith('| `linear`'))
  nll, bleu = tables[0].lines[1].nll, tables[0].lines[1].bleu['news']
  # chrF2 is BLEU and 20 here.
  assert linear == (
    '| `linear` | +250 | 0.3 | 2 | 1.8000 ± 0.0707 | -0.3000 | '
    f'{nll.over_seeds:.3f} | 34.50 ± 2.12 | +3.50 | <0.001 | '
    f'{bleu.over_seeds:.3f} | 54.50 ± 2.12 |'
  )
  (wide,) = (line for line in lines if line.startswith('| `wide`'))
  assert wide.startswith('| `wide` | +300 | – | 1 | not finite | – | – | 30.50')
  assert 'Missing with seed 1: `wide`.' in lines
  # none, wide and linear from scratch, two seeds each.
  assert 'None of 6 runs is finished yet.' in lines
  assert own.digest('pre')[:12] in text
  # The same machine for both seeds.
  assert lines[-1].endswith('cpu 1, jax 0.10.2 (seed 0, 1).')


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
