"""A run with random parameters, as a value and as a model of CTranslate2.

python -m benchmarks.random_run --size=base --output=DIR
"""

import sys
from pathlib import Path

import jax
from sentencepiece import sentencepiece_model_pb2

from benchmarks.fusion_jax_step import experiment, make_model
from benchmarks.serving import contestant_parser
from benchmarks.sizes import SIZES, Size
from fusion_jax.config.presets import changed
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.runs.loading import TrainedModel
from fusion_jax.tools.export.ctranslate2 import export

_SPECIAL = ('<pad>', '<unk>', '<s>', '</s>')


def random_run(size: Size, dtype: str = 'float32') -> TrainedModel:
  """The Transformer of a size, and a tokenizer of made-up pieces."""
  config = changed(experiment(size), {'model.compute_dtype': dtype})
  model = make_model(size, config)
  tokenizer = made_up_tokenizer(size.vocabulary)
  # Larger layers: with a tied table alone every token would repeat the last.
  parameters = jax.tree.map(
    lambda x: 2 * x if x.ndim > 1 else x, initial_parameters(model, seed=0)
  )
  parameters['source_embedding'] /= 2
  return TrainedModel(config, model, parameters, 0, tokenizer, tokenizer)


def made_up_tokenizer(pieces: int) -> Tokenizer:
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


def main() -> None:
  """Exports the run of a size."""
  parser = contestant_parser()
  parser.description = __doc__
  parser.add_argument('--output', type=Path, required=True)
  arguments = parser.parse_args()
  export(random_run(SIZES[arguments.size]), arguments.output)


if __name__ == '__main__':
  sys.exit(main())
