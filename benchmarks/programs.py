"""train.py and other programs as a user starts them, and what they log."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from benchmarks.common import as_flags
from benchmarks.serving import ROOT
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.serialization import flatten
from fusion_jax.runs.directory import read_metrics

# Fields that do not alter what is measured.
_FREE = (
  *('name', 'data.root', 'data.prepared'),
  *('training.seed', 'training.init_from'),
)


def start(
  *command: str,
  seconds: float | None = None,
  keep_open: Sequence[int] = (),
  requests: str = '',
  errors: IO[str] | None = None,
  environment: Mapping[str, str] | None = None,
) -> str:
  """Runs Python with these arguments in the root of the repository.

  What interrupts this program ends the other by SIGTERM, and waits for it.
  """
  with (
    _exit_on_sigterm(),
    subprocess.Popen(
      [sys.executable, *command],
      cwd=ROOT,
      stdin=subprocess.PIPE if requests else None,
      stdout=subprocess.PIPE,
      stderr=errors,
      env=environment,
      text=True,
      pass_fds=keep_open,
    ) as process,
  ):
    try:
      answer, _ = process.communicate(requests or None, seconds)
    except BaseException:
      process.terminate()
      process.communicate()
      raise
  if process.returncode:
    raise subprocess.CalledProcessError(
      process.returncode, process.args, answer
    )
  return answer


def train(
  config: str, workdir: Path, overrides: Mapping[str, Any], **options: Any
) -> None:
  """Starts train.py, or resumes what it has begun."""
  command = 'train.py', f'--config={config}', f'--workdir={workdir}'
  start(*command, *as_flags(overrides, 'config.'), **options)


def metrics(workdir: Path, kind: str) -> list[dict[str, Any]]:
  """The whole lines of a kind in a run's metrics.jsonl."""
  rows = read_metrics(workdir / 'metrics.jsonl')
  return [row for row in rows if row['kind'] == kind]


def measured_fields(config: ExperimentConfig) -> dict[str, Any]:
  """The leaves of a config that alter what is measured, as JSON has them."""
  leaves = {
    name: value for name, value in flatten(config).items() if name not in _FREE
  }
  return json.loads(json.dumps(leaves))


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
  """SIGTERM raises SystemExit, as Ctrl-C raises KeyboardInterrupt.

  Only while another program runs: where JAX is at work, its callbacks may
  swallow the exception.
  """
  before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)
