"""CTranslate2 as a contestant, with a random model of ours."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import ctranslate2

from benchmarks.serving import add_task, serve, task_of
from benchmarks.sizes import LENGTH, SIZES, Size, Task


class CTranslate2Search:
  """Encoder and search of all sentences, from pieces to pieces."""

  def __init__(self, size: Size, task: Task, arguments: argparse.Namespace):
    folder = Path(arguments.model)
    vocabulary = json.loads((folder / 'shared_vocabulary.json').read_text())
    self._ids = {piece: index for index, piece in enumerate(vocabulary)}
    # It adds the end symbols.
    self._batches = [
      [[vocabulary[token] for token in sentence[:-1]] for sentence in batch]
      for batch in task.batches(size)
    ]
    self._beam = task.beam
    # A batch is divided among the workers.
    self._rows = -(-task.rows // arguments.workers)
    self._translator = ctranslate2.Translator(
      str(folder),
      device=arguments.device,
      compute_type=arguments.compute,
      inter_threads=arguments.workers,
      intra_threads=arguments.threads,
    )
    self._first: list[str] = []

  def step(self) -> None:
    translated = [
      result.hypotheses[0]
      for batch in self._batches
      for result in self._translator.translate_batch(
        batch,
        max_batch_size=self._rows,
        beam_size=self._beam,
        min_decoding_length=LENGTH,
        max_decoding_length=LENGTH,
        disable_unk=False,
        return_scores=True,
      )
    ]
    if any(len(pieces) != LENGTH for pieces in translated):
      raise RuntimeError('a translation has another length')
    self._first = translated[0]

  def report(self) -> dict[str, Any]:
    return {
      'version': f'ctranslate2 {ctranslate2.__version__}',
      'device': self._translator.device,
      'compute_type': self._translator.compute_type,
      'first': [self._ids[piece] for piece in self._first[:-1]],
    }


def main() -> None:
  parser = argparse.ArgumentParser()
  add_task(parser)
  parser.add_argument('--model', required=True)
  parser.add_argument('--compute', default='float32')
  parser.add_argument('--device', default='cpu', help='or cuda')
  parser.add_argument('--workers', type=int, default=1)
  parser.add_argument('--threads', type=int, default=1)
  arguments = parser.parse_args()
  size, task = SIZES[arguments.size], task_of(arguments)
  serve(lambda: CTranslate2Search(size, task, arguments), warm_up_steps=1)


if __name__ == '__main__':
  sys.exit(main())
