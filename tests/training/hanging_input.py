"""train.py whose data disk hangs: from the 30th batch on no read returns."""

import sys
import threading

from fusion_jax.data.pipeline import TrainingBatches

_read = TrainingBatches.__getitem__


def _hanging(batches: TrainingBatches, step: int):
  if step >= 30:
    threading.Event().wait()
  return _read(batches, step)


if __name__ == '__main__':
  TrainingBatches.__getitem__ = _hanging
  from fusion_jax.cli import train

  sys.exit(train.main(sys.argv[1:]))
