"""Files with the numbers of a run: metrics.jsonl and TensorBoard events.

tensorboardX writes events in a thread: when the disk is full, the thread dies
and the caller waits for it forever. Here it only makes the records.
"""

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from fusion_jax.files import AppendedFile, write_whole
from fusion_jax.parallel.distributed import is_first
from fusion_jax.runs.metrics_file import read_metrics
from fusion_jax.training.wandb_log import WandbLog


class MetricsLog:
  """Log of named numbers in all places, written on process 0 alone.

  Damaged lines are removed first, and so are lines of steps after `step`: a run
  that was killed and resumed from an earlier checkpoint left them.
  """

  def __init__(self, workdir: Path, step: int, wandb: WandbLog | None = None):
    """Open the files on process 0."""
    self._wandb = wandb
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
    """Write one line and one point of each curve."""
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
    if self._wandb:
      self._wandb.write(step, named)

  def close(self) -> None:
    """Close all."""
    if self._writes:
      self._file.close()
      self._events.close()
    if self._wandb:
      self._wandb.close()


class EventFile:
  """A new file of TensorBoard points. Call `close` at the end."""

  def __init__(self, workdir: Path, first_step: int):
    """Make the file."""
    now = time.time()
    name = f'events.out.tfevents.{int(now)}.{socket.gethostname()}'
    self._file = AppendedFile(workdir / name)
    self._add(Event(wall_time=now, file_version='brain.Event:2'))
    start = SessionLog(status=SessionLog.START)
    self._add(Event(wall_time=now, step=first_step, session_log=start))

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Add one point to each curve."""
    points = [
      point
      for name, value in values.items()
      for point in scalar(name, value).value
    ]
    summary = Summary(value=points)
    self._add(Event(wall_time=time.time(), step=step, summary=summary))

  def close(self) -> None:
    """Close the file."""
    self._file.close()

  def _add(self, event: Event) -> None:
    self._file.append(record(event.SerializeToString()))


def record(content: bytes) -> bytes:
  """Return a TFRecord: length, its checksum, content, its checksum."""
  length = struct.pack('<Q', len(content))
  checks = [struct.pack('<I', masked_crc32c(x)) for x in (length, content)]
  return length + checks[0] + content + checks[1]
