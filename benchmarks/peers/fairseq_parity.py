"""A fairseq Transformer of random weights, and what fairseq makes of it.

    PYTHONPATH=FAIRSEQ_SOURCE .venv-peers/bin/python \
        -m benchmarks.peers.fairseq_parity --shape=iwslt \
        --train=train.both --input=test.en --folder=DIR

Writes DIR/checkpoint_best.pt, the dictionaries, joint.model and recorded.json,
in the form of `benchmarks.peers.marian_parity`. FAIRSEQ_SOURCE is the unpacked
source of fairseq 0.12.2, which needs hydra-core 1.0 and omegaconf 2.0 and
imports without its compiled parts.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch

_make = dataclasses.dataclass


def _hashable(cls: Any = None, /, **options: Any) -> Any:
  """Lets configs be defaults of configs, as Python did up to 3.10."""
  if cls is None:
    return lambda cls: _hashable(cls, **options)
  old = cls.__module__.startswith(('fairseq', 'hydra', 'omegaconf'))
  return _make(cls, **({'unsafe_hash': True} if old else {}), **options)


dataclasses.dataclass = _hashable
for _name, _type in (('float', float), ('int', int), ('bool', bool)):
  setattr(np, _name, _type)

from fairseq.data import Dictionary  # noqa: E402
from fairseq.models.transformer import TransformerModel  # noqa: E402
from fairseq.models.transformer.transformer_legacy import (  # noqa: E402
  base_architecture,
)
from fairseq.sequence_generator import SequenceGenerator  # noqa: E402

BEAM = 4
_ROWS = 50
_LEFT_OUT = 25

# Pieces, the largest number of subwords of a translation, and the model.
SHAPES: dict[str, tuple[int, int, dict[str, Any]]] = {
  'iwslt': (
    4_000,
    64,
    {
      'encoder_embed_dim': 512,
      'encoder_ffn_embed_dim': 1024,
      'encoder_attention_heads': 4,
      'decoder_attention_heads': 4,
    },
  ),
  'tiny': (
    60,
    16,
    {
      'encoder_embed_dim': 16,
      'encoder_ffn_embed_dim': 24,
      'encoder_attention_heads': 2,
      'decoder_attention_heads': 2,
      'encoder_layers': 1,
      'decoder_layers': 1,
    },
  ),
}


class Task:
  """What a model asks of its task."""

  def __init__(self, dictionary: Dictionary):
    self.source_dictionary = self.target_dictionary = dictionary


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--shape', choices=SHAPES, required=True)
  for name in ('train', 'input', 'folder'):
    parser.add_argument(f'--{name}', required=True)
  parser.add_argument('--options', type=json.loads, default={})
  parser.add_argument('--lines', type=int, default=200)
  arguments = parser.parse_args()
  pieces, limit, shape = SHAPES[arguments.shape]
  folder = Path(arguments.folder)
  folder.mkdir(parents=True)
  processor = make_pieces(folder, arguments.train, pieces)
  dictionary = make_dictionary(folder, processor)
  model = make_model(folder, dictionary, shape | arguments.options)
  lines = Path(arguments.input).read_text().splitlines()[: arguments.lines]
  recorded = record(model, dictionary, processor, lines, limit)
  (folder / 'recorded.json').write_text(json.dumps(recorded))


def make_pieces(
  folder: Path, text: str, pieces: int
) -> sentencepiece.SentencePieceProcessor:
  """One SentencePiece model for both sides."""
  sentencepiece.SentencePieceTrainer.train(
    input=text,
    model_prefix=str(folder / 'joint'),
    vocab_size=pieces,
    normalization_rule_name='identity',
    minloglevel=1,
  )
  (folder / 'joint.vocab').unlink()
  return sentencepiece.SentencePieceProcessor(
    model_file=str(folder / 'joint.model')
  )


def make_dictionary(
  folder: Path, processor: sentencepiece.SentencePieceProcessor
) -> Dictionary:
  """The dictionary of both sides, which lacks some pieces."""
  dictionary = Dictionary()
  for n in range(3, len(processor)):
    if n % _LEFT_OUT:
      dictionary.add_symbol(processor.id_to_piece(n), len(processor) - n)
  dictionary.finalize()
  for language in ('en', 'de'):
    dictionary.save(str(folder / f'dict.{language}.txt'))
  return dictionary


def make_model(
  folder: Path, dictionary: Dictionary, options: dict[str, Any]
) -> TransformerModel:
  """A model with larger weights than a fresh one, saved as fairseq does."""
  torch.manual_seed(0)
  values = {
    'arch': 'transformer_iwslt_de_en',
    'source_lang': 'en',
    'target_lang': 'de',
    'share_all_embeddings': True,
    **options,
  }
  args = argparse.Namespace(**values)
  base_architecture(args)
  model = TransformerModel.build_model(args, Task(dictionary)).eval()
  with torch.no_grad():
    for name, weight in model.named_parameters():
      if name.endswith('layer_norm.weight'):
        weight.normal_(1, 0.1)
      elif weight.ndim == 1:
        weight.normal_(0, 0.1)
      elif 'embed' in name:
        weight.normal_(0, 2 * weight.shape[1] ** -0.5)
  saved = {'args': args, 'cfg': None, 'model': model.state_dict()}
  torch.save(saved, folder / 'checkpoint_best.pt')
  return model


@torch.no_grad()
def record(
  model: TransformerModel,
  dictionary: Dictionary,
  processor: sentencepiece.SentencePieceProcessor,
  lines: list[str],
  limit: int,
) -> dict[str, Any]:
  """Ids, translations and log-probabilities of lines."""
  result: dict[str, Any] = {
    'made_with': f'fairseq 0.12.2, torch {torch.__version__}',
    'limit': limit,
    'lines': lines,
  }
  names = 'source', 'greedy', 'beam', 'log_probabilities', 'texts'
  result |= {name: [] for name in names}
  for first in range(0, len(lines), _ROWS):
    group = [
      [*map(dictionary.index, processor.encode(line, out_type=str)), 2]
      for line in lines[first : first + _ROWS]
    ]
    result['source'] += group
    batch = _padded(group)
    sources = {'src_tokens': batch, 'src_lengths': (batch != 1).sum(1)}
    for name, beam in (('greedy', 1), ('beam', BEAM)):
      search = SequenceGenerator(
        [model],
        dictionary,
        beam_size=beam,
        max_len_a=0,
        max_len_b=limit - 1,
      )
      hypotheses = search.generate([model], {'net_input': sources})
      result[name] += [best['tokens'].tolist() for best, *_ in hypotheses]
    best = result['beam'][first:]
    shifted = _padded([[2, *ids[:-1]] for ids in best])
    logits, _ = model(**sources, prev_output_tokens=shifted)
    every = logits.log_softmax(-1)
    every = every.gather(-1, _padded(best)[..., None])[..., 0]
    result['log_probabilities'] += [
      row[: len(ids)].tolist() for row, ids in zip(every, best, strict=True)
    ]
    pieces = [[dictionary[n] for n in ids[:-1]] for ids in best]
    result['texts'] += [
      ''.join(line).replace('▁', ' ').strip() for line in pieces
    ]
  return result


def _padded(rows: list[list[int]]) -> torch.Tensor:
  return torch.nn.utils.rnn.pad_sequence(
    [torch.tensor(ids) for ids in rows], batch_first=True, padding_value=1
  )


if __name__ == '__main__':
  main()
