"""The table of schemes, and its copy in the guide."""

import dataclasses
from pathlib import Path

import pytest

from fusion_jax.tools import scheme_sizes

_PAGE = Path(__file__).parents[2] / 'docs' / 'sizes.md'


@pytest.mark.extended
def test_the_table_agrees_with_the_papers_and_is_in_the_guide(capsys):
  assert scheme_sizes.main([]) == 0
  printed = capsys.readouterr().out
  assert printed in _PAGE.read_text(encoding='utf-8')
  inconsistent = [line for line in printed.splitlines() if ' no: ' in line]
  assert [line.split('`')[1] for line in inconsistent] == [
    'em_routing',
    'em_routing, Big',
  ]


def _row(name: str) -> scheme_sizes.Row:
  return next(row for row in scheme_sizes.rows() if row.model.name == name)


def test_a_count_that_leaves_the_rounding_is_an_error(monkeypatch):
  row = _row('linear')
  assert scheme_sizes.agrees(row)
  printed = scheme_sizes.Printed('+14.6M', row.model.printed.origin)
  wrong = row._replace(model=dataclasses.replace(row.model, printed=printed))
  assert not scheme_sizes.agrees(wrong)
  monkeypatch.setattr(scheme_sizes, 'rows', lambda: [wrong])
  with pytest.raises(SystemExit, match='1'):
    scheme_sizes.main([])


@pytest.mark.parametrize(
  ('form', 'start'),
  [
    ('csv', 'linear,"Dou et al. 2018, Eq. 5",layer aggregation,'),
    ('latex', r'\texttt{linear} & Dou et al. 2018, Eq. 5 & layer aggregation'),
  ],
)
def test_other_formats_of_the_table(monkeypatch, capsys, form, start):
  rows = [_row('linear')]
  monkeypatch.setattr(scheme_sizes, 'rows', lambda: rows)
  assert scheme_sizes.main([f'--format={form}']) == 0
  assert f'\n{start}' in capsys.readouterr().out


# One product with the width for each of 12 + 18 sublayers; for each of 2 to 7
# layers that a stack's sums have; with each of two weights in 5 layers a stack.
@pytest.mark.parametrize(
  ('name', 'count'),
  [
    ('skip_gains', 30 * 512),
    ('dlcl, DenseFormer', 2 * (2 + 3 + 4 + 5 + 6 + 7) * 512),
    ('value_residual, kind=learnable', 2 * 5 * 2 * 512),
    ('residual=b2t', 0),
    ('residual=deepnorm', 30 * 512),
  ],
)
def test_multiply_adds_by_hand(name, count):
  assert scheme_sizes.extra_multiplications(_row(name)) == count


# k = 2: layers 3..6 keep keys and values of one layer more, 4 of 6. Six layers
# keep keys, and one keeps values, instead of six: 7 / 12.
@pytest.mark.parametrize(
  ('name', 'share'),
  [('multi_layer, layers=2', 4 / 6), ('value_residual, kind=shared', -5 / 12)],
)
def test_the_cache_by_hand(name, share):
  assert scheme_sizes.extra_cache(_row(name)) == pytest.approx(share)
