"""The search of fusion_jax as a contestant, with random parameters.

--export writes the same run as a model of CTranslate2, and serves nothing.
"""

import functools
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sentencepiece import sentencepiece_model_pb2

from benchmarks.decode_task import (
  END,
  LENGTH,
  Task,
  batches,
  serve_task,
  task_parser,
)
from benchmarks.fusion_jax_step import experiment, make_model
from benchmarks.sizes import SIZES, Size
from fusion_jax.config.presets import Row, changed
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.decoding.compiled import (
  SearchRows,
  SearchSettings,
  search_batch,
)
from fusion_jax.decoding.model_step import Source
from fusion_jax.models.transformer import Parameters, initial_parameters
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.search.constraints import Requirements
from fusion_jax.search.hypotheses import LengthPenalty
from fusion_jax.tools.export.ctranslate2 import export

_SPECIAL = ('<pad>', '<unk>', '<s>', '</s>')
_PLAIN: Row = types.MappingProxyType({})


def random_run(size: Size, dtype: str, row: Row = _PLAIN) -> TrainedModel:
  """The Transformer of a size, and a tokenizer of made-up pieces.

  `row` is what a scheme changes in the config.
  """
  config = changed(experiment(size), {'model.compute_dtype': dtype} | row)
  model = make_model(size, config)
  tokenizer = _made_up_tokenizer(size.vocabulary)
  # Larger layers: with a tied table alone every token would repeat the last.
  parameters = jax.tree.map(
    lambda x: 2 * x if x.ndim > 1 else x, initial_parameters(model, seed=0)
  )
  parameters['source_embedding'] /= 2
  return TrainedModel(config, model, parameters, 0, tokenizer, tokenizer)


def _made_up_tokenizer(pieces: int) -> Tokenizer:
  """The four special symbols and piece4, piece5, ..."""
  model = sentencepiece_model_pb2.ModelProto()
  kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
  for piece in _SPECIAL:
    kind = kinds.UNKNOWN if piece == '<unk>' else kinds.CONTROL
    model.pieces.add(piece=piece, score=0.0, type=kind)
  for index in range(len(_SPECIAL), pieces):
    model.pieces.add(piece=f'piece{index}', score=-float(index))
  spec = model.trainer_spec
  spec.model_type, spec.vocab_size = spec.UNIGRAM, pieces
  spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = range(len(_SPECIAL))
  return Tokenizer(model.SerializeToString())


class FusionJaxDecode:
  """Encoder and search of all sentences, from ids to ids on the host.

  It is compiled ahead of time, and its parameters take memory of the device
  from the first step on.
  """

  def __init__(self, size: Size, task: Task, dtype: str, row: Row = _PLAIN):
    with jax.default_device(jax.devices('cpu')[0]):
      run = random_run(size, dtype, row)
    self._on_host = jax.device_get(run.parameters)
    settings = SearchSettings(task.beam, 1, END, LengthPenalty(), compacts=True)
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
    self._search = search_batch.lower(
      (self._on_host,),
      self._rows[0],
      models=(run.model,),
      settings=settings,
      max_length=LENGTH,
    ).compile()
    self._first: list[int] = []

  @functools.cached_property
  def _parameters(self) -> Parameters:
    return jax.device_put(self._on_host)

  def step(self) -> None:
    """Translates everything once."""
    found = [
      jax.device_get(self._search((self._parameters,), rows))
      for rows in self._rows
    ]
    if any((each.lengths != LENGTH).any() for each in found):
      raise RuntimeError('a translation has another length')
    self._first = found[0].tokens[0, 0, :-1].tolist()

  def report(self) -> dict[str, Any]:
    """Version, device, and the first translation without its end symbol."""
    return {
      'version': f'jax {version("jax")}',
      'device': jax.devices()[0].platform,
      'first': self._first,
    }


def main() -> None:
  parser = task_parser()
  parser.add_argument('--dtype', default='float32', help='or bfloat16')
  parser.add_argument('--export', type=Path, help='to this folder')
  arguments = parser.parse_args()
  if arguments.export:
    run = random_run(SIZES[arguments.size], arguments.dtype)
    export(run, arguments.export)
    return
  serve_task(
    lambda size, task: FusionJaxDecode(size, task, arguments.dtype), arguments
  )


if __name__ == '__main__':
  sys.exit(main())
