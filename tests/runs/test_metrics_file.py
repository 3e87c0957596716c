"""Damaged lines of metrics.jsonl are counted and left out."""

import json

from hypothesis import given
from hypothesis import strategies as st

from fusion_jax.runs.metrics_file import read_metrics
from fusion_jax.training.logs import MetricsLog

_GOOD = {'step': 5, 'kind': 'train', 'loss': 1.5, 'skipped': 0, 'bleu': None}
_DAMAGED = [
  b'',
  b'{"step": 5, "kind": "tra',
  b'[1, 2]',
  b'null',
  b'{"kind": "train"}',
  b'{"step": 5}',
  b'{"step": "5", "kind": "train"}',
  b'{"step": true, "kind": "train"}',
  b'{"step": -1, "kind": "train"}',
  b'{"step": 5, "kind": 7}',
  b'{"step": 5, "kind": "train", "loss": "low"}',
  b'{"step": 5, "kind": "train", "loss": NaN}',
  b'{"step": 5, "kind": "train", "loss": [1]}',
  b'{"step": 5, "kind": "train", "loss": 1%s}' % (b'0' * 400),
  b'\xff\xfe\x00',
  b'[' * 100_000,
]


def _write(path, *lines):
  path.write_bytes(b''.join(line + b'\n' for line in lines))


def test_damaged_lines_are_left_out_and_counted(tmp_path, caplog):
  path = tmp_path / 'metrics.jsonl'
  good = json.dumps(_GOOD).encode()
  _write(path, good, *_DAMAGED, good)
  assert read_metrics(path) == [_GOOD, _GOOD]
  (record,) = caplog.records
  total = len(_DAMAGED) + 2
  assert record.getMessage() == (
    f'{path}: {len(_DAMAGED)} damaged of {total} lines are left out, the first '
    'is line 2'
  )


def test_a_line_that_is_being_written_is_no_damage(tmp_path, caplog):
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(json.dumps(_GOOD).encode() + b'\n{"step": 6, "ki')
  assert read_metrics(path) == [_GOOD]
  assert not caplog.records


def test_a_file_that_is_not_there_has_no_lines(tmp_path):
  assert read_metrics(tmp_path / 'metrics.jsonl') == []


def test_a_resumed_run_drops_what_is_damaged_or_later(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  later = json.dumps(_GOOD | {'step': 6}).encode()
  _write(path, *_DAMAGED, json.dumps(_GOOD).encode(), later)
  log = MetricsLog(tmp_path, 5)
  log.write(7, 'valid', {'loss': 2.5})
  log.close()
  assert [json.loads(line) for line in path.read_text().splitlines()] == [
    _GOOD,
    {'step': 7, 'kind': 'valid', 'loss': 2.5},
  ]


@given(st.binary())
def test_any_bytes_can_be_read(tmp_path_factory, content):
  path = tmp_path_factory.mktemp('any') / 'metrics.jsonl'
  path.write_bytes(content)
  for row in read_metrics(path):
    assert isinstance(row['step'], int)
