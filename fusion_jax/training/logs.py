"""Where the numbers of a run go: metrics.jsonl and TensorBoard."""

import json
import math
from pathlib import Path

from fusion_jax.files import write_whole
from fusion_jax.parallel.distributed import is_first
from fusion_jax.training.appending import AppendedFile
from fusion_jax.training.events import EventFile
from fusion_jax.training.metrics_file import read_metrics


class MetricsLog:
  """Appends named numbers of a step to both files, on process 0.

  Lines that are damaged, and those of steps after `step`, left by a run that
  was killed and resumed from an earlier checkpoint, are removed first.
  """

  def __init__(self, workdir: Path, step: int):
    self._writes = is_first()
    if not self._writes:
      return
    path = workdir / 'metrics.jsonl'
    if path.exists():
      kept = [row for row in read_metrics(path) if row['step'] <= step]
      text = ''.join(json.dumps(row) + '\n' for row in kept)
      write_whole(path, text.encode())
    self._file = AppendedFile(path)
    self._events = EventFile(workdir, first_step=step + 1)

  def write(self, step: int, kind: str, values: dict[str, float]) -> None:
    """Writes one line and one point of each curve.

    Args:
      step: finished updates.
      kind: 'train', 'valid' or 'fusion'; the prefix of the curves' names.
      values: named numbers; those that are not finite become null in JSON.

    Raises:
      InputError: the disk is full.
    """
    if not self._writes:
      return
    finite = {
      name: value if math.isfinite(value) else None
      for name, value in values.items()
    }
    line = json.dumps({'step': step, 'kind': kind} | finite) + '\n'
    self._file.append(line.encode())
    named = {f'{kind}/{name}': value for name, value in values.items()}
    self._events.write(step, named)

  def close(self) -> None:
    """Closes both."""
    if self._writes:
      self._file.close()
      self._events.close()
