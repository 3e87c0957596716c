"""How a program of the project starts: logs, warnings, compilation cache."""

import logging
import sys


def start_program() -> None:
  """Sends log lines to stderr; libraries speak from warnings on."""
  logging.basicConfig(
    level=logging.INFO,
    format='%(asctime)s %(message)s',
    datefmt='%H:%M:%S',
    stream=sys.stderr,
  )
  for library in ('absl', 'jax', 'orbax', 'grain'):
    logging.getLogger(library).setLevel(logging.ERROR)
