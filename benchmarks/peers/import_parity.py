r"""Models of random weights, and what MarianMT or fairseq makes of lines.

    .venv-peers/bin/python -m benchmarks.peers.import_parity marian \
        --shape=opus --train=train.en,train.de --input=test.en --folder=DIR
    PYTHONPATH=FAIRSEQ_SOURCE .venv-peers/bin/python \
        -m benchmarks.peers.import_parity fairseq \
        --shape=iwslt --train=train.both --input=test.en --folder=DIR

Writes the model, as it is imported, and DIR/recorded.json: ids, greedy and beam
translations, and log-probabilities, for `benchmarks.import_parity` to compare
with. The shapes are those of import_parity.toml. Weights are drawn larger than
those of a fresh model, so that its distributions have peaks, and the vocabulary
lacks some of the SentencePiece pieces. `marian` needs transformers 5. `fairseq`
needs the unpacked source of fairseq 0.12.2, which imports without its compiled
parts, hydra-core 1.0 and omegaconf 2.0.
"""

import argparse
import dataclasses
import json
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
from torch import Tensor

SHAPES = tomllib.loads(Path(__file__).with_suffix('.toml').read_text())
BEAM = 4
_ROWS = 50
# One of so many pieces is left out of the vocabulary.
_LEFT_OUT = 25

Rows = Sequence[Sequence[int]]


@torch.no_grad()
def record(
  program: 'Marian | Fairseq', lines: Sequence[str], limit: int
) -> dict[str, Any]:
  """Ids with end symbols, translations and log-probabilities of lines."""
  columns: dict[str, list[Any]] = {
    name: []
    for name in ('source', 'greedy', 'beam', 'log_probabilities', 'texts')
  }
  for first in range(0, len(lines), _ROWS):
    sources = program.encode(lines[first : first + _ROWS])
    greedy, best = (program.translate(sources, k, limit) for k in (1, BEAM))
    scores = program.logits(sources, best).log_softmax(-1)
    of_targets = scores.gather(-1, _padded(best, 0)[..., None])[..., 0]
    columns['source'] += sources
    columns['greedy'] += greedy
    columns['beam'] += best
    columns['log_probabilities'] += [
      row[: len(ids)].tolist()
      for row, ids in zip(of_targets, best, strict=True)
    ]
    columns['texts'] += map(program.text, best)
  facts = {'made_with': program.made_with, 'limit': limit, 'lines': lines}
  return facts | columns


def _padded(rows: Rows, padding: int) -> Tensor:
  return torch.nn.utils.rnn.pad_sequence(
    [torch.tensor(ids) for ids in rows], batch_first=True, padding_value=padding
  )


def _make_pieces(
  text: str, model: Path, **options: Any
) -> sentencepiece.SentencePieceProcessor:
  """Trains a SentencePiece model, in a file without its list of pieces."""
  prefix = str(model.with_suffix(''))
  sentencepiece.SentencePieceTrainer.train(
    input=text, model_prefix=prefix, minloglevel=1, **options
  )
  Path(f'{prefix}.vocab').unlink()
  Path(f'{prefix}.model').rename(model)
  return sentencepiece.SentencePieceProcessor(model_file=str(model))


def _draw(model: torch.nn.Module, deviation: Callable[..., float]) -> None:
  """Draws gains near 1, biases near 0, and matrices where they deviate."""
  for name, weight in model.named_parameters():
    if name.endswith('layer_norm.weight'):
      weight.normal_(1, 0.1)
    elif weight.ndim == 1:
      weight.normal_(0, 0.1)
    elif wanted := deviation(name, *weight.shape):
      weight.normal_(0, wanted)


class Marian:
  """A MarianMT model with the options of OPUS-MT."""

  def __init__(self, folder: Path, texts: Sequence[str], shape: dict[str, Any]):
    import transformers

    versions = transformers.__version__, torch.__version__
    self.made_with = 'transformers {}, torch {}'.format(*versions)
    self._padding = shape['vocabulary'] - 1
    self._write_vocabulary(folder, texts, shape)
    self._write_model(folder, shape)
    self._tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    loaded = transformers.MarianMTModel.from_pretrained(folder)
    self._model = loaded.eval()

  def _write_vocabulary(
    self, folder: Path, texts: Sequence[str], shape: dict[str, Any]
  ) -> None:
    both: dict[str, None] = {}
    for side, text in zip(('source', 'target'), texts, strict=True):
      processor = _make_pieces(
        text,
        folder / f'{side}.spm',
        vocab_size=shape['pieces'],
        normalization_rule_name=shape['normalizer'],
        hard_vocab_limit=False,
        num_threads=2,
      )
      both |= dict.fromkeys(
        map(processor.id_to_piece, range(3, len(processor)))
      )
    kept = [piece for n, piece in enumerate(both, 1) if n % _LEFT_OUT]
    room = shape['vocabulary'] - 3
    kept = [*kept, *(f'filler{n}' for n in range(room))][:room]
    pieces = ['</s>', '<unk>', *kept, '<pad>']
    ids = json.dumps({piece: n for n, piece in enumerate(pieces)})
    (folder / 'vocab.json').write_text(ids)
    languages = {'source_lang': 'en', 'target_lang': 'de'}
    (folder / 'tokenizer_config.json').write_text(json.dumps(languages))

  def _write_model(self, folder: Path, shape: dict[str, Any]) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.MarianConfig(
      vocab_size=shape['vocabulary'],
      max_position_embeddings=512,
      activation_function='swish',
      scale_embedding=True,
      decoder_start_token_id=self._padding,
      pad_token_id=self._padding,
      eos_token_id=0,
      forced_eos_token_id=0,
      **shape['model'],
    )
    model = transformers.MarianMTModel(config)
    with torch.no_grad():
      _draw(
        model,
        lambda name, *shape: (
          'embed_positions' not in name and (2 / sum(shape)) ** 0.5
        ),
      )
      model.model.shared.weight.normal_(0, shape['table'])
      model.final_logits_bias.normal_(0, 0.5)
      # It ends translations.
      model.final_logits_bias[0, 0] = shape['end']
    model.generation_config.bad_words_ids = [[self._padding]]
    model.generation_config.num_beams = BEAM
    model.save_pretrained(folder)

  def _batch(self, sources: Rows) -> dict[str, Tensor]:
    ids = _padded(sources, self._padding)
    return {'input_ids': ids, 'attention_mask': (ids != self._padding).long()}

  def encode(self, lines: Sequence[str]) -> Rows:
    return self._tokenizer(list(lines)).input_ids

  def translate(self, sources: Rows, beam: int, limit: int) -> Rows:
    translated = self._model.generate(
      **self._batch(sources),
      num_beams=beam,
      max_length=limit + 1,
      length_penalty=1.0,
      early_stopping='never' if beam > 1 else False,
    )
    lines = [ids[1:] for ids in translated.tolist()]
    return [ids[: ids.index(0) + 1] for ids in lines]

  def logits(self, sources: Rows, targets: Rows) -> Tensor:
    return self._model(
      **self._batch(sources), labels=_padded(targets, 0)
    ).logits

  def text(self, ids: Sequence[int]) -> str:
    return self._tokenizer.decode(ids, skip_special_tokens=True)


class Fairseq:
  """A Transformer of fairseq; 1 is its padding and 2 its end symbol."""

  made_with = f'fairseq 0.12.2, torch {torch.__version__}'

  def __init__(self, folder: Path, texts: Sequence[str], shape: dict[str, Any]):
    _allow_old_code()
    from fairseq.data import Dictionary

    self._processor = _make_pieces(
      *texts,
      folder / 'joint.model',
      vocab_size=shape['pieces'],
      normalization_rule_name='identity',
    )
    self._dictionary = Dictionary()
    size = len(self._processor)
    for n in range(3, size):
      if n % _LEFT_OUT:
        self._dictionary.add_symbol(self._processor.id_to_piece(n), size - n)
    self._dictionary.finalize()
    for language in ('en', 'de'):
      self._dictionary.save(str(folder / f'dict.{language}.txt'))
    self._model = self._make_model(folder, shape['model'])

  def _make_model(self, folder: Path, options: dict[str, Any]) -> Any:
    from fairseq.models.transformer import TransformerModel, transformer_legacy

    torch.manual_seed(0)
    args = argparse.Namespace(
      arch='transformer_iwslt_de_en',
      source_lang='en',
      target_lang='de',
      share_all_embeddings=True,
      **options,
    )
    transformer_legacy.base_architecture(args)
    task = argparse.Namespace(
      source_dictionary=self._dictionary, target_dictionary=self._dictionary
    )
    model = TransformerModel.build_model(args, task).eval()
    with torch.no_grad():
      _draw(model, lambda name, _, width: 'embed' in name and 2 * width**-0.5)
    saved = {'args': args, 'cfg': None, 'model': model.state_dict()}
    torch.save(saved, folder / 'checkpoint_best.pt')
    return model

  def encode(self, lines: Sequence[str]) -> Rows:
    pieces = (self._processor.encode(line, out_type=str) for line in lines)
    return [[*map(self._dictionary.index, line), 2] for line in pieces]

  def _batch(self, sources: Rows) -> dict[str, Tensor]:
    ids = _padded(sources, 1)
    return {'src_tokens': ids, 'src_lengths': (ids != 1).sum(1)}

  def translate(self, sources: Rows, beam: int, limit: int) -> Rows:
    from fairseq.sequence_generator import SequenceGenerator

    lengths = {'max_len_a': 0, 'max_len_b': limit - 1}
    search = SequenceGenerator(
      [self._model], self._dictionary, beam_size=beam, **lengths
    )
    batch = {'net_input': self._batch(sources)}
    hypotheses = search.generate([self._model], batch)
    return [best['tokens'].tolist() for best, *_ in hypotheses]

  def logits(self, sources: Rows, targets: Rows) -> Tensor:
    shifted = _padded([[2, *ids[:-1]] for ids in targets], 1)
    return self._model(**self._batch(sources), prev_output_tokens=shifted)[0]

  def text(self, ids: Sequence[int]) -> str:
    pieces = (self._dictionary[n] for n in ids[:-1])
    return ''.join(pieces).replace('▁', ' ').strip()


def _allow_old_code() -> None:
  """Lets fairseq and what it needs be imported by Python 3.11 and NumPy 2."""
  make = dataclasses.dataclass

  def hashable(cls: Any = None, /, **options: Any) -> Any:
    """Lets configs be defaults of configs, as Python did up to 3.10."""
    if cls is None:
      return lambda cls: hashable(cls, **options)
    old = cls.__module__.startswith(('fairseq', 'hydra', 'omegaconf'))
    return make(cls, **({'unsafe_hash': True} if old else {}), **options)

  dataclasses.dataclass = hashable
  for name, type_ in (('float', float), ('int', int), ('bool', bool)):
    setattr(np, name, type_)


_PROGRAMS = {'marian': Marian, 'fairseq': Fairseq}


def main() -> None:
  parser = argparse.ArgumentParser()
  programs = parser.add_subparsers(dest='program', required=True)
  for name in _PROGRAMS:
    program = programs.add_parser(name)
    program.add_argument('--shape', choices=SHAPES[name], required=True)
    for flag in ('train', 'input', 'folder'):
      program.add_argument(f'--{flag}', required=True)
    program.add_argument('--options', type=json.loads, default={})
    program.add_argument('--lines', type=int, default=200)
  arguments = parser.parse_args()
  shape = SHAPES[arguments.program][arguments.shape]
  shape['model'] |= arguments.options
  folder = Path(arguments.folder)
  folder.mkdir(parents=True)
  texts = arguments.train.split(',')
  program = _PROGRAMS[arguments.program](folder, texts, shape)
  lines = Path(arguments.input).read_text().splitlines()[: arguments.lines]
  recorded = record(program, lines, shape['limit'])
  (folder / 'recorded.json').write_text(json.dumps(recorded))


if __name__ == '__main__':
  sys.exit(main())
