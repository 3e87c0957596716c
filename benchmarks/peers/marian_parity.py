"""A MarianMT model of random weights, and what transformers makes of it.

    .venv-peers/bin/python -m benchmarks.peers.marian_parity \
        --shape=opus --train=train.en,train.de --input=test.en --folder=DIR

Writes the model's folder and DIR/recorded.json: ids, greedy and beam
translations, and log-probabilities, for `benchmarks.import_parity` to compare
with. 'opus' has the shape of opus-mt-en-de, 'tiny' that of the recorded case of
the tests. Weights are drawn larger than those of a fresh model, so that its
distributions have peaks, and the end symbol has a bias that ends translations.
The vocabulary lacks some of the SentencePiece pieces, as that of OPUS-MT does.
Needs transformers 5, sentencepiece and PyTorch, in an environment of their own.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from torch import Tensor

# Pieces of each side; of both together, with the padding; the largest number of
# subwords of a translation; bias of the end symbol; and deviation of the table.
SHAPES: dict[str, dict[str, Any]] = {
  'opus': {
    'pieces': 32_000,
    'vocabulary': 58_101,
    'limit': 96,
    'end': 6.0,
    'table': 0.088,
    'normalizer': 'nmt_nfkc',
    'model': {
      'd_model': 512,
      'encoder_layers': 6,
      'decoder_layers': 6,
      'encoder_ffn_dim': 2_048,
      'decoder_ffn_dim': 2_048,
      'encoder_attention_heads': 8,
      'decoder_attention_heads': 8,
    },
  },
  'tiny': {
    'pieces': 60,
    'vocabulary': 100,
    'limit': 16,
    'end': 6.0,
    'table': 0.5,
    'normalizer': 'identity',
    'model': {
      'd_model': 16,
      'encoder_layers': 2,
      'decoder_layers': 2,
      'encoder_ffn_dim': 24,
      'decoder_ffn_dim': 24,
      'encoder_attention_heads': 2,
      'decoder_attention_heads': 2,
    },
  },
}

BEAM = 4
_ROWS = 50
# One of so many pieces is left out of the vocabulary.
_LEFT_OUT = 25


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--shape', choices=SHAPES, required=True)
  for name in ('train', 'input', 'folder'):
    parser.add_argument(f'--{name}', required=True)
  parser.add_argument('--lines', type=int, default=200)
  arguments = parser.parse_args()
  shape, folder = SHAPES[arguments.shape], Path(arguments.folder)
  folder.mkdir(parents=True)
  make_vocabulary(folder, arguments.train.split(','), shape)
  make_model(folder, shape)
  lines = Path(arguments.input).read_text().splitlines()[: arguments.lines]
  recorded = record(folder, lines, shape['limit'])
  (folder / 'recorded.json').write_text(json.dumps(recorded))


def make_vocabulary(
  folder: Path, texts: list[str], shape: dict[str, Any]
) -> None:
  """Two SentencePiece models and one vocabulary."""
  both: dict[str, None] = {}
  for side, text in zip(('source', 'target'), texts, strict=True):
    sentencepiece.SentencePieceTrainer.train(
      input=text,
      model_prefix=str(folder / side),
      vocab_size=shape['pieces'],
      normalization_rule_name=shape['normalizer'],
      hard_vocab_limit=False,
      num_threads=2,
      minloglevel=1,
    )
    (folder / f'{side}.vocab').unlink()
    model = (folder / f'{side}.model').rename(folder / f'{side}.spm')
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = [processor.id_to_piece(n) for n in range(len(processor))]
    both |= dict.fromkeys(pieces[3:])
  kept = [piece for n, piece in enumerate(both, 1) if n % _LEFT_OUT]
  room = shape['vocabulary'] - 3
  kept = [*kept, *(f'filler{n}' for n in range(room))][:room]
  ids = {piece: n for n, piece in enumerate(['</s>', '<unk>', *kept, '<pad>'])}
  (folder / 'vocab.json').write_text(json.dumps(ids, ensure_ascii=False))
  languages = {'source_lang': 'en', 'target_lang': 'de'}
  (folder / 'tokenizer_config.json').write_text(json.dumps(languages))


def make_model(folder: Path, shape: dict[str, Any]) -> None:
  """A model with the options of OPUS-MT."""
  torch.manual_seed(0)
  padding = shape['vocabulary'] - 1
  config = transformers.MarianConfig(
    vocab_size=shape['vocabulary'],
    max_position_embeddings=512,
    activation_function='swish',
    scale_embedding=True,
    decoder_start_token_id=padding,
    pad_token_id=padding,
    eos_token_id=0,
    forced_eos_token_id=0,
    **shape['model'],
  )
  model = transformers.MarianMTModel(config)
  with torch.no_grad():
    for name, weight in model.named_parameters():
      if name.endswith('layer_norm.weight'):
        weight.normal_(1, 0.1)
      elif weight.ndim == 1:
        weight.normal_(0, 0.1)
      elif 'embed_positions' not in name:
        weight.normal_(0, (2 / sum(weight.shape)) ** 0.5)
    model.model.shared.weight.normal_(0, shape['table'])
    model.final_logits_bias.normal_(0, 0.5)
    model.final_logits_bias[0, 0] = shape['end']
  model.generation_config.bad_words_ids = [[padding]]
  model.generation_config.num_beams = BEAM
  model.save_pretrained(folder)


@torch.no_grad()
def record(folder: Path, lines: list[str], limit: int) -> dict[str, Any]:
  """Ids, translations and log-probabilities of lines."""
  model = transformers.MarianMTModel.from_pretrained(folder).eval()
  tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
  result: dict[str, Any] = {
    'made_with': f'transformers {transformers.__version__}, '
    f'torch {torch.__version__}',
    'limit': limit,
    'lines': lines,
  }
  names = 'source', 'greedy', 'beam', 'log_probabilities', 'texts'
  result |= {name: [] for name in names}
  for first in range(0, len(lines), _ROWS):
    batch = tokenizer(
      lines[first : first + _ROWS], return_tensors='pt', padding=True
    )
    real = batch.attention_mask.bool()
    result['source'] += [
      ids[kept].tolist()
      for ids, kept in zip(batch.input_ids, real, strict=True)
    ]
    for name, beam in (('greedy', 1), ('beam', BEAM)):
      translated = model.generate(
        **batch,
        num_beams=beam,
        max_length=limit + 1,
        length_penalty=1.0,
        early_stopping='never' if beam > 1 else False,
      )
      result[name] += [_until_end(ids[1:].tolist()) for ids in translated]
    best = result['beam'][first:]
    result['log_probabilities'] += _log_probabilities(model, batch, best)
    result['texts'] += [
      tokenizer.decode(ids, skip_special_tokens=True) for ids in best
    ]
  return result


def _until_end(ids: list[int]) -> list[int]:
  return ids[: ids.index(0) + 1]


def _log_probabilities(
  model: Any, batch: dict[str, Tensor], targets: list[list[int]]
) -> list[list[float]]:
  """log p of every target token."""
  rows = [torch.tensor(ids) for ids in targets]
  padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
  logits = model(**batch, labels=padded).logits
  every = logits.log_softmax(-1).gather(-1, padded[..., None])[..., 0]
  return [
    row[: len(ids)].tolist() for row, ids in zip(every, rows, strict=True)
  ]


if __name__ == '__main__':
  main()
