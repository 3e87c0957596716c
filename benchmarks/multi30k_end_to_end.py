"""Training on real text, padding and input included, against JoeyNMT.

    python -m benchmarks.multi30k_end_to_end --data=DIR [--peer]

JoeyNMT trains on the same pairs, with the same SentencePiece model, model size
and slots of a batch, by its own trainer. Both count target subwords without
padding, and the first steps of neither count. Every round is a run of its own
and is saved: the same command resumes.
"""

import argparse
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import sentencepiece

from benchmarks.common import (
  PEERS_PYTHON,
  RESULTS,
  cells,
  log,
  make_parser,
  metrics,
  resume,
  spread,
  table,
  train,
  write_results,
)
from benchmarks.input_throughput import real_share, training_batches
from benchmarks.serving import ROOT, limit_cores
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config
from fusion_jax.config.presets import changed
from fusion_jax.data.corpora import read_pairs
from fusion_jax.data.normalise import normalised
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus

_OURS, _PEER = 'fusion_jax', 'JoeyNMT'
_LOG_EVERY, _NEVER = 10, 1_000_000
_PEER_LINE = re.compile(r'Step:\s*(\d+).*Tokens per Sec:\s*(\d+)')


def main() -> None:
  arguments = _parse()
  limit_cores()
  places = {
    'data.root': str(arguments.data.absolute()),
    'data.prepared': str(arguments.workdir / 'prepared'),
  }
  config = changed(load_config(arguments.config), places)
  corpus = prepare(config.data)
  settings = {
    'config': config.name,
    'steps': [arguments.steps, arguments.peer_steps],
    'skipped': [arguments.skip, arguments.peer_skip],
  }
  results = resume(arguments.output, settings, arguments.fresh)
  lengths = corpus.split('train').lengths
  share = real_share(training_batches(config, corpus), lengths)
  results.setdefault('real_share', {})[_OURS] = share
  rounds = results['rounds']
  for index in range(arguments.rounds):
    if len(rounds.setdefault(_OURS, [])) <= index:
      rounds[_OURS].append(_our_rates(arguments, places))
      write_results(arguments.output, results)
    if arguments.peer and len(rounds.setdefault(_PEER, [])) <= index:
      try:
        rounds[_PEER].append(_peer_rates(arguments, results, config, corpus))
      except (subprocess.CalledProcessError, OSError) as error:
        log(f'{_PEER}: {error}')
  results['summary'] = {
    name: spread([rate for lines in runs for rate in lines])
    for name, runs in rounds.items()
    if runs
  }
  write_results(arguments.output, results)
  print(_report(results))


def _our_rates(
  arguments: argparse.Namespace, places: dict[str, Any]
) -> list[float]:
  """Target tokens/s of the log lines of a run of train.py."""
  folders = (arguments.workdir / f'ours-{n}' for n in itertools.count())
  workdir = next(folder for folder in folders if not folder.exists())
  fields = {
    'training.steps': arguments.steps,
    'training.log_every': _LOG_EVERY,
    'training.validate_every': _NEVER,
    'training.save_every': _NEVER,
    'training.translate_sentences': 8,
  }
  train(arguments.config, workdir, places | fields)
  return [
    line['tokens_per_second']
    for line in metrics(workdir, 'train')
    if line['step'] > arguments.skip
  ]


def _peer_rates(
  arguments: argparse.Namespace,
  results: dict[str, Any],
  config: ExperimentConfig,
  corpus: PreparedCorpus,
) -> list[float]:
  """The same of JoeyNMT's trainer; also adds how full its batches are."""
  directory = arguments.workdir / 'joeynmt'
  _write_peer_data(directory, config, corpus, arguments.peer_steps)
  if _PEER not in results['real_share']:
    module = '-m', 'benchmarks.peers.joeynmt_contestants', 'padding'
    answer = subprocess.run(
      [PEERS_PYTHON, *module, directory / 'config.json'],
      cwd=ROOT,
      check=True,
      stdout=subprocess.PIPE,
    )
    results['real_share'][_PEER] = json.loads(answer.stdout)['real_share']
  training = [PEERS_PYTHON, '-m', 'joeynmt', 'train', 'config.json']
  subprocess.run(
    [*training, '--skip-test'], cwd=directory, check=True, stdout=sys.stderr
  )
  text = (directory / 'run' / 'train.log').read_text()
  return [
    float(rate)
    for step, rate in _PEER_LINE.findall(text)
    if int(step) > arguments.peer_skip
  ]


def _write_peer_data(
  directory: Path, config: ExperimentConfig, corpus: PreparedCorpus, steps: int
) -> None:
  """Text, pieces and config for JoeyNMT; YAML reads JSON."""
  directory.mkdir(parents=True, exist_ok=True)
  data = config.data
  languages = (data.source_language, data.target_language)
  for split in ('train', 'valid'):
    named = (read_pairs(name, data) for name in getattr(data, split))
    pairs = [p for p in map(normalised, itertools.chain(*named)) if all(p)]
    for language, lines in zip(
      languages, zip(*pairs, strict=True), strict=True
    ):
      text = ''.join(f'{line}\n' for line in lines)
      (directory / f'{split}.{language}').write_text(text, encoding='utf-8')
  model = corpus.source_tokenizer.model
  (directory / 'pieces.model').write_bytes(model)
  pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
  names = (pieces.id_to_piece(i) for i in range(pieces.get_piece_size()))
  text = ''.join(f'{name}\n' for name in names)
  (directory / 'pieces.txt').write_text(text, encoding='utf-8')
  values = json.dumps(_peer_config(directory, config, steps), indent=1)
  (directory / 'config.json').write_text(values)


def _parse() -> argparse.Namespace:
  parser = make_parser(__doc__, RESULTS / 'multi30k_end_to_end.json')
  add = parser.add_argument
  add('--data', type=Path, required=True)
  add('--config', default='configs/multi30k.py')
  add('--peer', action='store_true')
  numbers = {'rounds': 2, 'steps': 300, 'skip': 100}
  for name, value in (numbers | {'peer_steps': 120, 'peer_skip': 20}).items():
    add(f'--{name}', type=int, default=value)
  add('--workdir', type=Path, default=ROOT / 'runs' / 'benchmark_multi30k')
  add('--fresh', action='store_true', help='start anew')
  arguments = parser.parse_args()
  arguments.workdir = arguments.workdir.absolute()
  return arguments


def _peer_config(
  directory: Path, config: ExperimentConfig, steps: int
) -> dict[str, Any]:
  data, optimizer, model = config.data, config.optimizer, config.model
  side = {
    'level': 'bpe',
    'tokenizer_type': 'sentencepiece',
    'max_length': data.filter.max_length - 1,
    'voc_file': str(directory / 'pieces.txt'),
    'voc_limit': data.tokenizer.vocabulary_size,
    'tokenizer_cfg': {'model_file': str(directory / 'pieces.model')},
  }
  stack = {
    'type': 'transformer',
    'num_heads': model.heads,
    'embeddings': {
      'embedding_dim': model.width,
      'scale': True,
      'dropout': model.embedding_dropout,
    },
    'hidden_size': model.width,
    'ff_size': model.filter,
    'dropout': model.dropout,
    'layer_norm': model.norm,
  }
  return {
    'name': 'multi30k',
    'model_dir': str(directory / 'run'),
    'use_cuda': False,
    'normalization': 'tokens',
    'data': {
      'train': str(directory / 'train'),
      'dev': str(directory / 'valid'),
      'dataset_type': 'plain',
      'src': side | {'lang': data.source_language},
      'trg': side | {'lang': data.target_language},
    },
    'testing': {},
    'training': {
      'normalization': 'tokens',
      'optimizer': 'adam',
      'adam_betas': [optimizer.beta1, optimizer.beta2],
      'scheduling': 'warmupinversesquareroot',
      'learning_rate': optimizer.peak,
      'learning_rate_min': 0,
      'learning_rate_warmup': optimizer.warmup_steps,
      'label_smoothing': config.training.label_smoothing,
      'batch_type': 'token',
      'batch_size': data.batch.tokens,
      'epochs': 1_000,
      'updates': steps,
      'logging_freq': _LOG_EVERY,
      'validation_freq': _NEVER,
      'overwrite': True,
    },
    'model': {
      'initializer': 'xavier_uniform',
      'tied_embeddings': True,
      'tied_softmax': True,
      'encoder': stack | {'num_layers': model.encoder_layers},
      'decoder': stack | {'num_layers': model.decoder_layers},
    },
  }


def _report(results: dict[str, Any]) -> str:
  summary, shares = results['summary'], results['real_share']
  rows = [
    (name, *cells(speeds), f'{shares[name]:.1%}')
    for name, speeds in summary.items()
  ]
  header = ('real target tokens/s', 'median', 'min', 'max', 'slots filled')
  text = table(header, rows)
  if _PEER in summary:
    ratio = summary[_OURS]['median'] / summary[_PEER]['median']
    text += f'\n{_OURS}: {ratio:.2f} times {_PEER}'
  return text


if __name__ == '__main__':
  sys.exit(main())
