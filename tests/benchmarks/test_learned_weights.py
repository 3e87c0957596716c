"""How alike the weights of two runs are."""

import pytest

from benchmarks.learned_weights import learned, likeness, main
from fusion_jax.errors import InputError


def test_weights_of_known_likeness():
  """Deviations (-1, 0, 1) and (-1, 1, 0): correlation 1/2."""
  first = {'a': 0.0, 'b': 1.0, 'c': 2.0}
  second = {'c': 4.0, 'a': 3.0, 'b': 5.0}
  correlation, difference = likeness(first, second)
  assert correlation == pytest.approx(0.5)
  assert difference == pytest.approx(4.0)


def test_every_two_corpora_have_a_row(capsys):
  main(['--scheme=transparent'])
  header, _, *rows = capsys.readouterr().out.splitlines()
  assert header.startswith('| run | other run | pairs |')
  assert [row.split(' | ')[:2] for row in rows] == [
    ['| multi30k', 'multi30k'],
    ['| multi30k', 'multi30k_mlrf'],
    ['| multi30k_mlrf', 'multi30k_mlrf'],
  ]


def test_what_has_no_weights_is_refused():
  runs = [{'scheme': 'lexical', 'telemetry': {}}]
  with pytest.raises(InputError, match="mix: no pre-norm run of 'dlcl'"):
    learned('mix', runs, 'dlcl')
  with pytest.raises(InputError, match="mix: 'lexical' logs no weights"):
    learned('mix', runs, 'lexical')


def test_weights_of_other_names_are_refused():
  with pytest.raises(InputError, match='b in only one of two runs'):
    likeness({'a': 0.0, 'b': 1.0}, {'a': 0.0})
