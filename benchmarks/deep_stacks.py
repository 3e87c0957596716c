r"""Which deep Transformers train: post-norm against what was made for depth.

    python -m benchmarks.deep_stacks --data=DIR --workdir=DIR \
        [--depths=18+6,30+6,60+12] [--schemes=NAME,NAME] [--steps=N]

After Yang et al. (2022), Table VIII and section IV; docs/deep_stacks.md has the
results. Narrow layers, for 2 CPU cores, and each scheme in the norm of its
paper. There is no dropout, as 300 updates see no sentence twice, and no
clipping, as in the papers. The same command continues, also inside a training.
"""

import argparse
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from benchmarks.common import (
  RESULTS,
  log,
  make_parser,
  metrics,
  resume,
  table,
  train,
  write_results,
)
from benchmarks.serving import limit_cores
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config, parse_arguments
from fusion_jax.config.presets import (
  DOU_2018,
  SINCE_2020,
  YANG_2022,
  Row,
  both_sides,
  changed,
  choose,
  depth,
)
from fusion_jax.data.batching import Batch, choose_shapes
from fusion_jax.data.pipeline import evaluation_batches
from fusion_jax.data.prepare import prepare
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.errors import CheckFailed, InputError
from fusion_jax.models.losses import zero_sums
from fusion_jax.runs.loading import load_run
from fusion_jax.startup import one_line_errors, start_logging
from fusion_jax.training.evaluate import token_means
from fusion_jax.training.step import batch_loss

_BASE = 'multi30k:en-de'
_RECIPE: Row = {
  'data.tokenizer.vocabulary_size': 2_000,
  'data.filter.max_length': 20,
  'data.batch.tokens': 640,
  'data.batch.shapes': 2,
  'model.width': 64,
  'model.filter': 256,
  'model.heads': 4,
  'model.norm': 'post',
  'model.initialization': 'glorot',
  'model.dropout': 0.0,
  'model.embedding_dropout': 0.0,
  # Of 5e-4, 1e-3, 2e-3 and 5e-3 the best for plain post-norm of 6+6 layers.
  'optimizer.peak': 1e-3,
  'optimizer.warmup_steps': 100,
  'training.steps': 300,
  'training.log_every': 10,
  'training.save_every': 50,
  'training.validate_every': 300,
  # Updates that are not finite are counted, and do not end a run.
  'training.max_skipped': 1_000_000,
  'training.translate_sentences': 1,
  'training.metric': 'loss',
  'training.keep_last': 1,
  'training.keep_best': 0,
}
# From this number of encoder layers on, Yang et al. (2022) have groups of 6.
_DEEP = 60
# Nats a target token.
_MARGIN, _RISE, _READ = 0.1, 0.5, 0.05
_RULE = (
  'not finite: a loss is not finite at the end; no better than unigrams: the '
  f'validation NLL is not {_MARGIN} below that of the unigram distribution; '
  f'rose again: the training NLL ends more than {_RISE} above its minimum; '
  f'source not read: the sources of other sentences cost less than {_READ}'
)
_HEADER = (
  *('', 'train NLL', 'valid NLL', 'source', 'gradient', 'layer 1', 'layer L'),
  *('last 1', 'last L', 'skipped', ''),
)
_Run = Mapping[str, Any]


def schemes(encoder_layers: int) -> dict[str, Row]:
  """What each scheme changes in a post-norm Transformer of such an encoder."""
  group_size = 6 if encoder_layers >= _DEEP else 0
  return {
    'post': YANG_2022['post_norm'],
    'transparent': YANG_2022['transparent'],
    'gtrans': both_sides('gtrans', group_size=group_size),
    'hierarchical': DOU_2018['hierarchical'],
    'dlcl_post': both_sides('dlcl'),
    'rezero': YANG_2022['rezero'],
    'dlcl': YANG_2022['dlcl'],
    'pre': YANG_2022['pre_norm'],
    'b2t': SINCE_2020['b2t'],
    'deepnorm': SINCE_2020['deepnorm'],
    'post_mlrf': {'model.initialization': 'mlrf'},
  }


def deep_config(stacks: str, scheme: str) -> ExperimentConfig:
  """Of layers such as '60+12', which run under scan where they can."""
  layers = layers_of(stacks)
  row = choose(schemes(layers[0]), scheme)
  recipe = _RECIPE | depth(*layers) | row | {'name': f'{stacks}/{scheme}'}
  config = changed(load_config(_BASE), recipe)
  sides = config.model.encoder, config.model.decoder
  alike = not any(side.owns_layer_inputs for side in sides)
  return changed(config, {'model.scan_layers': alike})


def layers_of(stacks: str) -> tuple[int, int]:
  """The layers of the encoder and the decoder of '60+12'."""
  match = re.fullmatch(r'([1-9]\d*)\+([1-9]\d*)', stacks)
  if not match:
    raise InputError(
      f'{stacks!r} is no depth; give ENCODER+DECODER layers, 60+12 for example'
    )
  return int(match[1]), int(match[2])


@one_line_errors
def main(argv: list[str]) -> None:
  arguments = _parse(argv)
  start_logging()
  limit_cores()
  workdir = arguments.workdir.absolute()
  places = {
    'data.root': str(arguments.data.absolute()),
    'data.prepared': str(workdir / 'prepared'),
  }
  steps = {'training.steps': arguments.steps} if arguments.steps else {}
  wanted = {
    f'{stacks}/{scheme}': changed(deep_config(stacks, scheme), places | steps)
    for stacks in arguments.depths.split(',')
    for scheme in arguments.schemes.split(',')
  }
  corpus = prepare(changed(deep_config('6+6', 'post'), places).data)
  results = resume(arguments.output, dict(_RECIPE | steps), arguments.fresh)
  results['unigram'] = unigram_nll(corpus)
  for name, config in wanted.items():
    if name not in results['rounds']:
      log(name)
      run = workdir / f'{config.training.steps}' / name.replace('/', '-')
      results['rounds'][name] = measure(config, run)
      write_results(arguments.output, results)
  print(report(results))


def measure(config: ExperimentConfig, workdir: Path) -> dict[str, Any]:
  """Trains, reads what was logged, and exchanges the sources."""
  train(_BASE, config, workdir)
  steps = config.training.steps
  if not (workdir / 'checkpoints' / str(steps)).is_dir():
    raise CheckFailed(f'{config.name}: stopped; the same command continues')
  lines = metrics(workdir, 'train'), metrics(workdir, 'valid')
  return read(*lines, steps) | {'other_source': exchanged_nll(workdir)}


def read(
  lines: list[dict[str, Any]], validations: list[dict[str, Any]], steps: int
) -> dict[str, Any]:
  """What is compared, from the lines of metrics.jsonl."""
  first, last = (lines[0], lines[-1]) if lines else ({}, {})
  finished = last.get('step') == steps
  # Of the encoder's layers, the lowest first.
  norms = [
    [line[name] for name in line if name.startswith('encoder_gradient_norm_')]
    for line in (first, last)
  ]
  return {
    'steps': [line['step'] for line in lines],
    'train': [nll(line['perplexity']) for line in lines],
    'valid': nll(validations[-1]['perplexity']) if validations else None,
    'gradient_norm': first.get('gradient_norm'),
    'first_norms': norms[0],
    'last_norms': norms[1],
    # No line is written while all updates are skipped.
    'skipped': last.get('skipped', 0)
    + (0 if finished else steps - last.get('step', 0)),
  }


def verdict(run: _Run, unigram: float) -> str:
  """How a training went, by the first case of the rule that holds."""
  losses, valid, other = run['train'], run['valid'], run['other_source']
  if not losses or None in (losses[-1], valid, other):
    return 'not finite'
  if valid > unigram - _MARGIN:
    return 'no better than unigrams'
  if losses[-1] > min(loss for loss in losses if loss is not None) + _RISE:
    return 'rose again'
  if other < valid + _READ:
    return 'source not read'
  return 'trains'


def nll(perplexity: float | None) -> float | None:
  """Nats, or None where the perplexity is not finite or None."""
  if perplexity is None or not math.isfinite(perplexity):
    return None
  return math.log(perplexity)


def unigram_nll(corpus: PreparedCorpus) -> dict[str, float]:
  """NLL of the target tokens by their frequencies in the training text."""
  counts = {name: _counts(corpus, name) for name in ('train', 'valid')}
  log_p = log_unigram(counts['train'])
  return {
    name: float(-(of_split * log_p).sum() / of_split.sum())
    for name, of_split in counts.items()
  }


def log_unigram(counts: Float[np.ndarray, ' V']) -> Float[np.ndarray, ' V']:
  """Log frequencies, one added to every count (Laplace)."""
  return np.log(counts + 1) - math.log(counts.sum() + len(counts))


def _counts(corpus: PreparedCorpus, name: str) -> Float[np.ndarray, ' V']:
  split = corpus.split(name)
  ids = np.concatenate([split[i].target for i in range(len(split))])
  size = corpus.target_tokenizer.vocabulary.size
  return np.bincount(ids, minlength=size).astype(np.float64)


def exchanged_nll(workdir: Path) -> float | None:
  """NLL of the validation text, given the sources of other sentences."""
  run = load_run(workdir, 'last')
  data, chunk = run.config.data, run.config.training.loss_chunk
  split = prepare(data).split('valid')
  shapes = choose_shapes(split.lengths, data.batch, 1, data.filter.max_length)
  sums_of = jax.jit(
    lambda batch: batch_loss(run.model, run.parameters, batch, 0.0, chunk)[0]
  )
  sums = zero_sums()
  for batch in map(exchanged, evaluation_batches(split, shapes)):
    sums = jax.tree.map(jnp.add, sums, sums_of(batch))
  return nll(token_means(sums)['perplexity'])


def exchanged(batch: Batch) -> Batch:
  """Every sentence gets the source of the next; the last that of the first."""
  rows = np.arange(len(batch.source))
  real = np.count_nonzero(batch.target_lengths)
  rows[:real] = np.roll(rows[:real], -1)
  return batch._replace(
    source=batch.source[rows], source_lengths=batch.source_lengths[rows]
  )


def report(results: _Run) -> str:
  """The table and the rule of its verdicts."""
  unigram = results['unigram']
  losses = f'{unigram["train"]:.3f}', f'{unigram["valid"]:.3f}'
  rows = [('unigram', *losses, *[''] * 8)]
  rows += [
    (name, *_cells(run, unigram['valid']))
    for name, run in results['rounds'].items()
  ]
  return f'{table(_HEADER, rows)}\n{_RULE}'


def _cells(run: _Run, unigram: float) -> tuple[str, ...]:
  valid, other = run['valid'], run['other_source']
  source = None if None in (valid, other) else other - valid
  losses = run['train'][-1] if run['train'] else None, valid, source
  norms = [run['gradient_norm']]
  for layers in (run['first_norms'], run['last_norms']):
    norms += (layers[0], layers[-1]) if layers else (None, None)
  return (
    *(_number(value, '.3f') for value in losses),
    *(_number(value, '.2g') for value in norms),
    str(run['skipped']),
    verdict(run, unigram),
  )


def _number(value: float | None, form: str) -> str:
  return 'nan' if value is None else format(value, form)


def _parse(argv: list[str]) -> argparse.Namespace:
  parser = make_parser(__doc__, RESULTS / 'deep_stacks.json')
  add = parser.add_argument
  add('--data', type=Path, required=True, help='the folder of Multi30k')
  add('--workdir', type=Path, required=True, help='for the runs')
  add('--depths', default='18+6,30+6,60+12', help='encoder+decoder layers')
  add('--schemes', default=','.join(schemes(6)), help='with commas between')
  add('--steps', type=int, help='updates; default: of the recipe')
  add('--fresh', action='store_true', help='forget finished runs')
  return parse_arguments(argv, parser)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
