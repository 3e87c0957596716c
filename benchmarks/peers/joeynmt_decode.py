"""JoeyNMT's own search as a contestant, with random parameters of its own."""

import sys
from typing import Any

import joeynmt
import torch
from joeynmt.model import build_model
from joeynmt.search import search

from benchmarks.decode_task import (
  LENGTH,
  Task,
  batches,
  serve_task,
  task_parser,
)
from benchmarks.peers.joeynmt_step import make_batch, model_config, vocabulary
from benchmarks.serving import CORES
from benchmarks.sizes import Size


class JoeyNmtDecode:
  """Encoder and search of all sentences, from ids to ids."""

  def __init__(self, size: Size, task: Task):
    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    pieces = vocabulary(size)
    self._model = build_model(model_config(size), pieces, pieces).eval()
    self._beam = task.beam
    self._batches = [
      make_batch(torch.tensor(ids)) for ids in batches(task, size)
    ]

  def step(self) -> None:
    """Translates everything once, as its `predict` does."""
    for batch in self._batches:
      found, _, _ = search(
        self._model,
        batch,
        max_output_length=LENGTH,
        beam_size=self._beam,
        beam_alpha=0.6,
        min_output_length=LENGTH,
      )
      if found.shape != (batch.src.shape[0], LENGTH):
        raise RuntimeError('a translation has another length')

  def report(self) -> dict[str, Any]:
    """Version and parameters."""
    return {
      'version': f'joeynmt {joeynmt.__version__}, torch {torch.__version__}',
      'parameters': sum(p.numel() for p in self._model.parameters()),
    }


def main() -> None:
  serve_task(JoeyNmtDecode, task_parser().parse_args())


if __name__ == '__main__':
  sys.exit(main())
