"""train.py and other programs as a user starts them, and what they log."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.serving import ROOT
from fusion_jax.config import ExperimentConfig
from fusion_jax.serialization import flatten

# Fields that do not alter what is measured.
_FREE = (
  'name',
  'data.root',
  'data.prepared',
  'training.seed',
  'training.init_from',
)


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


def measured_fields(config: ExperimentConfig) -> dict[str, Any]:
  """The leaves of a config that alter what is measured, as JSON has them."""
  leaves = {
    name: value for name, value in flatten(config).items() if name not in _FREE
  }
  return json.loads(json.dumps(leaves))
