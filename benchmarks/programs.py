"""train.py and other programs as a user starts them, and what they log."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.serving import ROOT


def start(*command: str) -> str:
  """Runs Python with these arguments in the root of the repository.

  Returns:
    Its stdout; its stderr is ours.

  Raises:
    subprocess.CalledProcessError: its exit code is not 0.
  """
  answer = subprocess.run(
    [sys.executable, *command],
    cwd=ROOT,
    check=True,
    stdout=subprocess.PIPE,
    text=True,
  )
  return answer.stdout


def train(config: str, workdir: Path, overrides: Mapping[str, Any]) -> None:
  """Starts train.py, or goes on with what it has begun.

  Args:
    config: its --config.
    workdir: its --workdir.
    overrides: dotted names of fields of the config, and their values.
  """
  flags = [f'--config.{name}={value}' for name, value in overrides.items()]
  start('train.py', f'--config={config}', f'--workdir={workdir}', *flags)


def metrics(workdir: Path, kind: str) -> list[dict[str, Any]]:
  """The lines of a kind in a run's metrics.jsonl: 'train' or 'valid'."""
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  return [line for line in map(json.loads, lines) if line['kind'] == kind]
