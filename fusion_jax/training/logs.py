"""Where the numbers of a run go: metrics.jsonl and TensorBoard."""

import json
import math
from pathlib import Path

import tensorboardX

from fusion_jax.parallel.distributed import is_first
from fusion_jax.training.run_directory import write_atomically


class MetricsLog:
  """Appends named numbers of a step to both files, on process 0.

  Lines of steps after `step`, left by a run that was killed and resumed from
  an earlier checkpoint, are removed first.
  """

  def __init__(self, workdir: Path, step: int):
    self._writes = is_first()
    if not self._writes:
      return
    path = workdir / 'metrics.jsonl'
    if path.exists():
      kept = [line for line in path.read_text().splitlines() if _is_whole(line)]
      kept = [line for line in kept if json.loads(line)['step'] <= step]
      write_atomically(path, ''.join(line + '\n' for line in kept).encode())
    self._file = path.open('a', buffering=1, encoding='utf-8')
    self._events = tensorboardX.SummaryWriter(str(workdir), purge_step=step + 1)

  def write(self, step: int, kind: str, values: dict[str, float]) -> None:
    """Writes one line and one point of each curve.

    Args:
      step: finished updates.
      kind: 'train', 'valid' or 'fusion'; the prefix of the curves' names.
      values: named numbers; those that are not finite become null in JSON.
    """
    if not self._writes:
      return
    finite = {
      name: value if math.isfinite(value) else None
      for name, value in values.items()
    }
    self._file.write(json.dumps({'step': step, 'kind': kind} | finite) + '\n')
    for name, value in values.items():
      self._events.add_scalar(f'{kind}/{name}', value, step)

  def close(self) -> None:
    """Flushes and closes both."""
    if self._writes:
      self._file.close()
      self._events.close()


def _is_whole(line: str) -> bool:
  """Whether a line is complete; a kill may have cut the last one."""
  try:
    return 'step' in json.loads(line)
  except ValueError:
    return False
