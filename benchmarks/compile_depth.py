"""Compile seconds of the training step of deep GTRANS models.

    python -m benchmarks.compile_depth [--width=512]

Layers run under scan, so that one of each stack is compiled; nothing is
allocated or run.
"""

import argparse
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from benchmarks.common import RESULTS, table, write_results
from fusion_jax.config import ExperimentConfig, ModelConfig
from fusion_jax.config.fusion import GtransOptions, SideConfig
from fusion_jax.data.batching import Batch
from fusion_jax.models.transformer import Transformer
from fusion_jax.training.initial_state import initial_state
from fusion_jax.training.optimizer import make_optimizer
from fusion_jax.training.step import make_train_step, zero_totals

_DEPTHS = ((6, 6), (12, 12), (60, 12))
_VOCABULARY, _ROWS, _LENGTH = 32_000, 32, 32


def compile_seconds(width: int, encoder: int, decoder: int) -> dict[str, float]:
  """Seconds to trace and to compile one training step."""
  side = SideConfig(fusion='gtrans', gtrans=GtransOptions(group_size=6))
  model_config = ModelConfig(
    width=width,
    filter=4 * width,
    encoder_layers=encoder,
    decoder_layers=decoder,
    encoder=side,
    decoder=side,
    scan_layers=True,
    remat=True,
  )
  config = ExperimentConfig(model=model_config)
  model = Transformer(model_config, _VOCABULARY, _VOCABULARY, 2)
  optimizer = make_optimizer(config.optimizer, width)
  state = jax.eval_shape(lambda: initial_state(model, optimizer, 0))
  totals = jax.eval_shape(lambda: zero_totals(encoder))
  ids = jax.ShapeDtypeStruct((_ROWS, _LENGTH), jnp.int32)
  lengths = jax.ShapeDtypeStruct((_ROWS,), jnp.int32)
  batch = Batch(
    source=ids, source_lengths=lengths, target=ids, target_lengths=lengths
  )
  step = make_train_step(model, optimizer, config)
  start = time.perf_counter()
  lowered = step.lower(state, totals, batch)
  traced = time.perf_counter()
  lowered.compile()
  return {
    'trace': traced - start,
    'compile': time.perf_counter() - traced,
  }


def main() -> None:
  """Prints a line a depth."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--width', type=int, default=512)
  parser.add_argument(
    '--output', type=Path, default=RESULTS / 'compile_depth.json'
  )
  arguments = parser.parse_args()
  results = {'settings': {'width': arguments.width}, 'seconds': {}}
  for encoder, decoder in _DEPTHS:
    name = f'{encoder}+{decoder}'
    results['seconds'][name] = compile_seconds(
      arguments.width, encoder, decoder
    )
    print(name, results['seconds'][name], file=sys.stderr, flush=True)
  write_results(arguments.output, results)
  rows = [
    (name, f'{each["trace"]:.1f}', f'{each["compile"]:.1f}')
    for name, each in results['seconds'].items()
  ]
  print(table(('layers', 'trace s', 'compile s'), rows))


if __name__ == '__main__':
  sys.exit(main())
