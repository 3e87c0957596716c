"""Lines of progress: what is counted, and how it is said."""

import logging

import pytest

from fusion_jax import progress as module
from fusion_jax.progress import Progress


@pytest.mark.parametrize(
  ('total', 'done', 'line', 'last'),
  [
    (None, 1, '1 line, ', '1 line, '),
    (None, 2, '2 lines, ', '2 lines, '),
    (1, 1, '1 of 1 line, ', '1 line, '),
    (1_200, 1, '1 of 1,200 lines, ', '1 line, '),
  ],
)
def test_one_is_singular(caplog, monkeypatch, total, done, line, last):
  caplog.set_level(logging.INFO)
  monkeypatch.setattr(module, '_SECONDS_BETWEEN_LINES', 0)
  progress = Progress(total, 'lines')
  progress.add(done)
  progress.finish()
  for message, start in zip(caplog.messages, (line, last), strict=True):
    assert message.startswith(start)
