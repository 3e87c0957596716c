"""JoeyNMT's own search as a contestant, with random parameters of its own."""

import sys
from typing import Any

import joeynmt
import torch
from joeynmt.batch import Batch
from joeynmt.model import build_model
from joeynmt.search import search

from benchmarks.decode_task import (
  END,
  LENGTH,
  Task,
  batches,
  task_of,
  task_parser,
)
from benchmarks.peers.joeynmt_step import model_config, vocabulary
from benchmarks.serving import CORES, serve
from benchmarks.sizes import SIZES, Size

_PADDING = 1


class JoeyNmtDecode:
  """Encoder and search of all sentences, from ids to ids."""

  def __init__(self, size: Size, task: Task):
    torch.set_num_threads(CORES)
    torch.manual_seed(0)
    pieces = vocabulary(size)
    self._model = build_model(model_config(size), pieces, pieces).eval()
    self._beam = task.beam
    self._batches = [self._batch(ids) for ids in batches(task, size)]

  def _batch(self, ids: list[list[int]]) -> Batch:
    source = torch.tensor(ids)
    rows, length = source.shape
    return Batch(
      src=source,
      src_length=torch.full((rows,), length),
      src_prompt_mask=None,
      trg=None,
      trg_prompt_mask=None,
      indices=torch.arange(rows),
      device=torch.device('cpu'),
      pad_index=_PADDING,
      eos_index=END,
      is_train=False,
    )

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
  """Serves until stdin ends."""
  arguments = task_parser().parse_args()
  task = task_of(arguments)
  serve(
    lambda size: JoeyNmtDecode(size, task),
    SIZES[arguments.size],
    warm_up_steps=1,
  )


if __name__ == '__main__':
  sys.exit(main())
