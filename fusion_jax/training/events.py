"""The curves of a run for TensorBoard, in an events.out.tfevents file.

tensorboardX writes such files in a thread: that dies when the disk is full,
and whoever logs then waits for it for ever. Here it only makes the records.
"""

import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from fusion_jax.training.appending import AppendedFile


class EventFile:
  """A new file of points. Call `close` at the end."""

  def __init__(self, workdir: Path, first_step: int):
    """Makes the file.

    Args:
      workdir: the folder that TensorBoard is shown.
      first_step: points of this step and later ones in older files are not
        shown any more.

    Raises:
      InputError: it cannot be written.
    """
    now = time.time()
    name = f'events.out.tfevents.{int(now)}.{socket.gethostname()}'
    self._file = AppendedFile(workdir / name)
    self._add(Event(wall_time=now, file_version='brain.Event:2'))
    start = SessionLog(status=SessionLog.START)
    self._add(Event(wall_time=now, step=first_step, session_log=start))

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Adds one point to each curve.

    Args:
      step: finished updates.
      values: by the names of the curves.

    Raises:
      InputError: they cannot be written.
    """
    points = [
      point
      for name, value in values.items()
      for point in scalar(name, value).value
    ]
    summary = Summary(value=points)
    self._add(Event(wall_time=time.time(), step=step, summary=summary))

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def _add(self, event: Event) -> None:
    self._file.append(record(event.SerializeToString()))


def record(content: bytes) -> bytes:
  """A TFRecord: length, checksum of it, content, checksum of it."""
  length = struct.pack('<Q', len(content))
  checks = [struct.pack('<I', masked_crc32c(x)) for x in (length, content)]
  return length + checks[0] + content + checks[1]
