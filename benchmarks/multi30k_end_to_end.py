r"""Training on real text, padding and input included, against JoeyNMT.

    python -m benchmarks.multi30k_end_to_end --data=DIR [--peer]

Ours is train.py with configs/multi30k.py; JoeyNMT trains on the same pairs,
with the same SentencePiece model, model size and slots of a batch, by its own
trainer and its usual token batches. Both count target subwords without
padding, the end symbol included, and the first steps of neither count. Every
round is a run of its own and is saved: the same command resumes.
"""

import argparse
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
  resume,
  spread,
  table,
  write_results,
)
from benchmarks.input_throughput import real_share, training_batches
from benchmarks.programs import metrics, train
from benchmarks.serving import ROOT, limit_cores
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config
from fusion_jax.config.presets import changed
from fusion_jax.data.corpora import read_pairs
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus

_OURS, _PEER = 'fusion_jax', 'JoeyNMT'
_LOG_EVERY = 10
_NEVER = 1_000_000
_PEER_LINE = re.compile(r'Step:\s*(\d+).*Tokens per Sec:\s*(\d+)')


def main() -> None:
  """Runs what is missing, then prints the table."""
  arguments = _parse()
  limit_cores()
  config = changed(load_config(arguments.config), _overrides(arguments))
  corpus = prepare(config.data)
  settings = {
    'config': config.name,
    'steps': [arguments.steps, arguments.peer_steps],
    'skipped': [arguments.skip, arguments.peer_skip],
  }
  results = resume(arguments.output, settings, arguments.fresh)
  results['real_share'] = results.get('real_share', {})
  results['real_share'][_OURS] = real_share(
    training_batches(config, corpus), corpus.split('train').lengths
  )
  for index in range(arguments.rounds):
    _round(index, results, arguments, config, corpus)
  rounds = results['rounds']
  results['summary'] = {
    name: spread([rate for lines in rounds[name] for rate in lines])
    for name in rounds
    if rounds[name]
  }
  write_results(arguments.output, results)
  print(_report(results))


def our_rates(
  arguments: argparse.Namespace, workdir: Path
) -> list[tuple[int, float]]:
  """Steps and target tokens/s of the log lines of a run of train.py."""
  overrides = _overrides(arguments) | {
    'training.steps': arguments.steps,
    'training.log_every': _LOG_EVERY,
    'training.validate_every': _NEVER,
    'training.save_every': _NEVER,
    'training.translate_sentences': 8,
  }
  train(arguments.config, workdir, overrides)
  return [
    (value['step'], value['tokens_per_second'])
    for value in metrics(workdir, 'train')
  ]


def peer_rates(directory: Path) -> list[tuple[int, float]]:
  """The same of JoeyNMT's trainer."""
  command = ['-m', 'joeynmt', 'train', 'config.json', '--skip-test']
  subprocess.run(
    [PEERS_PYTHON, *command], cwd=directory, check=True, stdout=sys.stderr
  )
  log = (directory / 'run' / 'train.log').read_text()
  return [(int(step), float(rate)) for step, rate in _PEER_LINE.findall(log)]


def peer_real_share(directory: Path) -> float:
  """Share of real tokens in an epoch of JoeyNMT's batches."""
  module = 'benchmarks.peers.joeynmt_padding'
  answer = subprocess.run(
    [PEERS_PYTHON, '-m', module, directory / 'config.json'],
    cwd=ROOT,
    check=True,
    stdout=subprocess.PIPE,
  )
  return json.loads(answer.stdout)['real_share']


def write_peer_data(
  directory: Path,
  config: ExperimentConfig,
  corpus: PreparedCorpus,
  steps: int,
) -> None:
  """Text, pieces and config for JoeyNMT; YAML reads JSON."""
  directory.mkdir(parents=True, exist_ok=True)
  data = config.data
  for split in ('train', 'valid'):
    pairs = [
      pair
      for name in getattr(data, split)
      for pair in read_pairs(name, data)
      if all(pair)
    ]
    sides = zip(*pairs, strict=True)
    languages = (data.source_language, data.target_language)
    for language, lines in zip(languages, sides, strict=True):
      text = ''.join(line + '\n' for line in lines)
      (directory / f'{split}.{language}').write_text(text, encoding='utf-8')
  (directory / 'pieces.model').write_bytes(corpus.source_tokenizer.model)
  pieces = sentencepiece.SentencePieceProcessor(
    model_proto=corpus.source_tokenizer.model
  )
  names = [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]
  text = '\n'.join(names) + '\n'
  (directory / 'pieces.txt').write_text(text, encoding='utf-8')
  values = json.dumps(_peer_config(directory, config, steps), indent=1)
  (directory / 'config.json').write_text(values)


def _parse() -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--data', type=Path, required=True)
  parser.add_argument('--config', default='configs/multi30k.py')
  parser.add_argument('--peer', action='store_true')
  parser.add_argument('--rounds', type=int, default=2)
  parser.add_argument('--steps', type=int, default=300)
  parser.add_argument('--skip', type=int, default=100)
  parser.add_argument('--peer_steps', type=int, default=120)
  parser.add_argument('--peer_skip', type=int, default=20)
  parser.add_argument(
    '--workdir', type=Path, default=ROOT / 'runs' / 'benchmark_multi30k'
  )
  parser.add_argument(
    '--output', type=Path, default=RESULTS / 'multi30k_end_to_end.json'
  )
  parser.add_argument('--fresh', action='store_true', help='start anew')
  return parser.parse_args()


def _overrides(arguments: argparse.Namespace) -> dict[str, Any]:
  return {
    'data.root': str(arguments.data.absolute()),
    'data.prepared': str(arguments.workdir.absolute() / 'prepared'),
  }


def _round(
  index: int,
  results: dict[str, Any],
  arguments: argparse.Namespace,
  config: ExperimentConfig,
  corpus: PreparedCorpus,
) -> None:
  """Adds one round of each side, where it is missing."""
  rounds = results['rounds']
  workdir = arguments.workdir.absolute()
  if len(rounds.setdefault(_OURS, [])) <= index:
    run = _new_directory(workdir / 'ours')
    rates = our_rates(arguments, run)
    rounds[_OURS].append(
      [rate for step, rate in rates if step > arguments.skip]
    )
    write_results(arguments.output, results)
  if arguments.peer and len(rounds.setdefault(_PEER, [])) <= index:
    try:
      _peer_round(workdir / 'joeynmt', results, arguments, config, corpus)
    except (subprocess.CalledProcessError, OSError) as error:
      print(f'{_PEER}: {error}', file=sys.stderr)


def _peer_round(
  directory: Path,
  results: dict[str, Any],
  arguments: argparse.Namespace,
  config: ExperimentConfig,
  corpus: PreparedCorpus,
) -> None:
  write_peer_data(directory, config, corpus, arguments.peer_steps)
  if _PEER not in results['real_share']:
    results['real_share'][_PEER] = peer_real_share(directory)
  rates = peer_rates(directory)
  results['rounds'][_PEER].append(
    [rate for step, rate in rates if step > arguments.peer_skip]
  )
  write_results(arguments.output, results)


def _new_directory(prefix: Path) -> Path:
  """The first of prefix-0, prefix-1, ... that is not there."""
  index = 0
  while prefix.with_name(f'{prefix.name}-{index}').exists():
    index += 1
  return prefix.with_name(f'{prefix.name}-{index}')


def _peer_config(
  directory: Path, config: ExperimentConfig, steps: int
) -> dict[str, Any]:
  data = config.data
  side = {
    'level': 'bpe',
    'tokenizer_type': 'sentencepiece',
    'max_length': data.filter.max_length - 1,
    'voc_file': str(directory / 'pieces.txt'),
    'tokenizer_cfg': {'model_file': str(directory / 'pieces.model')},
  }
  vocabulary = config.data.tokenizer.vocabulary_size
  return {
    'name': 'multi30k',
    'model_dir': str(directory / 'run'),
    'use_cuda': False,
    'normalization': 'tokens',
    'data': {
      'train': str(directory / 'train'),
      'dev': str(directory / 'valid'),
      'dataset_type': 'plain',
      'src': side | {'lang': data.source_language, 'voc_limit': vocabulary},
      'trg': side | {'lang': data.target_language, 'voc_limit': vocabulary},
    },
    'testing': {},
    'training': _peer_training(config, steps),
    'model': _peer_model(config),
  }


def _peer_training(config: ExperimentConfig, steps: int) -> dict[str, Any]:
  optimizer = config.optimizer
  return {
    'normalization': 'tokens',
    'optimizer': 'adam',
    'adam_betas': [optimizer.beta1, optimizer.beta2],
    'scheduling': 'warmupinversesquareroot',
    'learning_rate': optimizer.peak,
    'learning_rate_min': 0,
    'learning_rate_warmup': optimizer.warmup_steps,
    'label_smoothing': config.training.label_smoothing,
    'batch_type': 'token',
    'batch_size': config.data.batch.tokens,
    'epochs': 1_000,
    'updates': steps,
    'logging_freq': _LOG_EVERY,
    'validation_freq': _NEVER,
    'overwrite': True,
  }


def _peer_model(config: ExperimentConfig) -> dict[str, Any]:
  model = config.model

  def stack(layers: int) -> dict[str, Any]:
    return {
      'type': 'transformer',
      'num_layers': layers,
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
    'initializer': 'xavier_uniform',
    'tied_embeddings': True,
    'tied_softmax': True,
    'encoder': stack(model.encoder_layers),
    'decoder': stack(model.decoder_layers),
  }


def _report(results: dict[str, Any]) -> str:
  summary, shares = results['summary'], results['real_share']
  rows = [
    (
      name,
      *(f'{summary[name][key]:,.0f}' for key in ('median', 'min', 'max')),
      f'{shares[name]:.1%}',
    )
    for name in summary
  ]
  header = ('real target tokens/s', 'median', 'min', 'max', 'slots filled')
  lines = [table(header, rows)]
  if _PEER in summary:
    ratio = summary[_OURS]['median'] / summary[_PEER]['median']
    lines.append(f'{_OURS}: {ratio:.2f} times {_PEER}')
  return '\n'.join(lines)


if __name__ == '__main__':
  sys.exit(main())
