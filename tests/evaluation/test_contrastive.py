import gzip
import json

import pytest

from fusion_jax.errors import InputError
from fusion_jax.evaluation import contrastive
from fusion_jax.evaluation.contrastive import accuracies, read_items

_ITEMS = [
  {
    'source': 'ein Schlag',
    'reference': 'a blow',
    'origin': 'news',
    'distance': 5,
    'errors': [
      {'contrastive': 'a kind', 'type': 'sense', 'frequency': 0},
      {'contrastive': 'a punch', 'type': 'sense', 'frequency': 9},
    ],
  },
  {'source': 'x', 'reference': 'y', 'errors': []},
  {
    'source': 'er',
    'reference': 'he',
    'origin': 'talks',
    'errors': [{'contrastive': 'she', 'type': 'gender', 'distance': 1}],
  },
]


@pytest.fixture
def path(tmp_path):
  file = tmp_path / 'items.json.gz'
  with gzip.open(file, 'wt') as write:
    json.dump(_ITEMS, write)
  return file


def test_items_are_read(path):
  first, second, _ = read_items(path)
  texts = 'a blow', 'a kind', 'a punch'
  assert first.pairs == [('ein Schlag', text) for text in texts]
  assert second.errors == []


def test_accuracies_by_hand(path):
  items = [item for item in read_items(path) if item.errors]
  found = accuracies(items, [[-1.0, -2.0, -0.5], [-3.0, -3.0]])
  # A tie is no preference.
  assert found == {
    'items': (0, 2),
    'pairs': (1, 3),
    'type sense': (1, 2),
    'origin news': (1, 2),
    'distance 4-7': (1, 2),
    'frequency 0': (1, 1),
    'frequency 8-15': (0, 1),
    'type gender': (0, 1),
    'origin talks': (0, 1),
    'distance 1': (0, 1),
  }


def test_the_program_prints_accuracies_and_writes_scores(
  path, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(
    contrastive,
    '_scores',
    lambda arguments, items: [[-1.0, -2.0, -3.0], [-4.0, -3.0]],
  )
  flags = [f'--workdir={tmp_path}', f'--input={path}']
  output = tmp_path / 'scores.json'
  assert contrastive.main([*flags, f'--output={output}']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[0].split() == ['items', '50.00%', '1', 'of', '2']
  assert lines[1].split() == ['pairs', '66.67%', '2', 'of', '3']
  assert json.loads(output.read_text()) == [[-1, -2, -3], [-4, -3]]


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('{', 'items.json: not JSON: '),
    ('{}', 'must be a list'),
    ('[]', 'no item has a wrong translation'),
    ('[{"source": "a", "errors": []}]', '0.reference: is missing'),
    (
      '[{"source": "a", "reference": "b", "errors": '
      '[{"contrastive": "c", "distance": "far"}]}]',
      "0.errors.0.distance: must be a whole number, got 'far'",
    ),
  ],
)
def test_broken_files_are_named(tmp_path, text, message):
  path = tmp_path / 'items.json'
  path.write_text(text)
  with pytest.raises(InputError, match=message):
    read_items(path)
