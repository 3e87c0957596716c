"""Answers of finished probes, kept until all are finished.

A view that is interrupted leaves them in its folder, one JSON object a line
with the accuracy of a probe; the same command goes on from there.
"""

import base64
import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from fusion_jax.analysis.probes.training import ProbeOptions
from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.errors import InputError
from fusion_jax.files import AppendedFile, write_errors
from fusion_jax.json_input import parse_json

NAME = 'probes.part.jsonl'

# Whether each answer is right, and the number of epochs.
Answer = tuple[Bool[np.ndarray, ' n'], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Line:
  key: str
  probe: str
  accuracy: float
  epochs: int
  positions: int
  right: str


class KeptAnswers:
  """The answers of finished probes, by the name of the probe."""

  def __init__(self, analysed: RunWithText, options: ProbeOptions):
    """Read what an earlier call with the same inputs has left."""
    self._path = analysed.folder and analysed.folder / NAME
    self._key, self._found = '', dict[str, Answer]()
    if self._path:
      about = f'{analysed.digest} {options}'
      self._key = hashlib.sha256(about.encode()).hexdigest()
      self._found = _read(self._path, self._key)

  def find(self, probe: str) -> Answer | None:
    """Return the answer of a probe, if it is finished."""
    return self._found.get(probe)

  def add(self, probe: str, answer: Answer) -> None:
    """Keep the answer of a probe."""
    if not self._path:
      return
    with write_errors(self._path):
      self._path.parent.mkdir(parents=True, exist_ok=True)
    right, epochs = answer
    line = _Line(
      key=self._key,
      probe=probe,
      accuracy=float(right.mean()),
      epochs=epochs,
      positions=len(right),
      right=base64.b64encode(np.packbits(right).tobytes()).decode(),
    )
    file = AppendedFile(self._path)
    file.append(json.dumps(dataclasses.asdict(line)).encode() + b'\n')
    file.close()

  def remove(self) -> None:
    """Remove the file: all probes are finished."""
    if self._path:
      with write_errors(self._path):
        self._path.unlink(missing_ok=True)


def _read(path: Path, key: str) -> dict[str, Answer]:
  """Return the answers with this key; lines that are damaged have none."""
  found = {}
  try:
    lines = path.read_bytes().splitlines()
  except OSError:
    return {}
  for line in lines:
    try:
      own = _Line(**parse_json(line, str(path), _Line))
      packed = np.frombuffer(base64.b64decode(own.right), np.uint8)
      right = np.unpackbits(packed, count=own.positions).astype(bool)
    except (InputError, TypeError, ValueError):
      continue
    if own.key == key:
      found[own.probe] = right, own.epochs
  return found
