"""References: the lines that translations are scored against, as they stand."""

import logging
from collections.abc import Sequence

from fusion_jax.data.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


def log_unreachable(
  references: Sequence[str], tokenizer: Tokenizer, name: str
) -> None:
  """Say how many references no translation can equal, if any."""
  changed = [
    n for n, line in enumerate(references, 1) if tokenizer.changes(line)
  ]
  if changed:
    logger.warning(
      '%s: %d of %d lines, line %d first, have characters that the model '
      'normalises; it cannot write these lines as they are',
      name,
      len(changed),
      len(references),
      changed[0],
    )
