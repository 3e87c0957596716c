"""The search of fusion_jax as a contestant."""

import sys
from importlib.metadata import version
from typing import Any

import jax
import numpy as np

from benchmarks.decode_task import (
  END,
  LENGTH,
  Task,
  batches,
  task_of,
  task_parser,
)
from benchmarks.random_run import random_run
from benchmarks.serving import serve
from benchmarks.sizes import SIZES, Size
from fusion_jax.decoding.compiled import (
  SearchRows,
  SearchSettings,
  search_batch,
)
from fusion_jax.decoding.model_step import Source
from fusion_jax.search.constraints import Requirements
from fusion_jax.search.hypotheses import Hypotheses, LengthPenalty


class FusionJaxDecode:
  """Encoder and search of all sentences, from ids to ids on the host."""

  def __init__(self, size: Size, task: Task, dtype: str):
    run = random_run(size, dtype)
    self._model, self._parameters = run.model, run.parameters
    self._settings = SearchSettings(
      task.beam, 1, END, LengthPenalty(), narrows=True
    )
    limits = np.full(task.rows, LENGTH, np.int32)
    self._rows = [
      SearchRows(
        (Source(np.array(batch, np.int32), limits),),
        max_lengths=limits,
        numbers=np.arange(task.rows, dtype=np.int32),
        requirements=Requirements(limits),
      )
      for batch in batches(task, size)
    ]
    self._first: list[int] = []

  def step(self) -> None:
    """Translates everything once."""
    found = [self._search(rows) for rows in self._rows]
    if any((each.lengths != LENGTH).any() for each in found):
      raise RuntimeError('a translation has another length')
    self._first = found[0].tokens[0, 0, :-1].tolist()

  def _search(self, rows: SearchRows) -> Hypotheses:
    return jax.device_get(
      search_batch(
        (self._parameters,),
        rows,
        models=(self._model,),
        settings=self._settings,
        max_length=LENGTH,
      )
    )

  def report(self) -> dict[str, Any]:
    """Version, device, and the first translation without its end symbol."""
    return {
      'version': f'jax {version("jax")}',
      'device': jax.devices()[0].platform,
      'first': self._first,
    }


def main() -> None:
  """Serves until stdin ends."""
  parser = task_parser()
  parser.add_argument('--dtype', default='float32', help='or bfloat16')
  arguments = parser.parse_args()
  task = task_of(arguments)
  serve(
    lambda size: FusionJaxDecode(size, task, arguments.dtype),
    SIZES[arguments.size],
    warm_up_steps=1,
  )


if __name__ == '__main__':
  sys.exit(main())
