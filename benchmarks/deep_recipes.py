"""A config file: deep stacks of narrow layers, for 2 CPU cores.

    fusion-jax train --config=benchmarks/deep_recipes.py:DEPTH/SCHEME ...

Depths    layers of the encoder and the decoder: 60+12 and the like
Schemes   each in the norm of its paper, post, gtrans and the like
Data      as configs/multi30k.py, sentences of at most 20 subwords

There is no dropout: 300 updates see no sentence twice. There is no clipping,
as in the papers.
"""

import re

from benchmarks.serving import ROOT
from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import load_config
from fusion_jax.config.fusion import GtransOptions
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
from fusion_jax.errors import InputError

RECIPE: Row = {
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


def schemes(encoder_layers: int) -> dict[str, Row]:
  """What each scheme changes in a post-norm Transformer of such an encoder."""
  group_size = 6 if encoder_layers >= _DEEP else 0
  return {
    'post': YANG_2022['post_norm'],
    'transparent': YANG_2022['transparent'],
    'gtrans': both_sides('gtrans', gtrans=GtransOptions(group_size=group_size)),
    'hierarchical': DOU_2018['hierarchical'],
    'dlcl_post': both_sides('dlcl'),
    'rezero': YANG_2022['rezero'],
    'dlcl': YANG_2022['dlcl'],
    'pre': YANG_2022['pre_norm'],
    'b2t': SINCE_2020['b2t'],
    'deepnorm': SINCE_2020['deepnorm'],
    'post_mlrf': {'model.initialization': 'mlrf'},
  }


SCHEMES = tuple(schemes(6))


def get_config(variant: str = '18+6/post') -> ExperimentConfig:
  """The config DEPTH/SCHEME; its layers run under scan where they can."""
  stacks, _, scheme = variant.partition('/')
  layers = layers_of(stacks)
  row = choose(schemes(layers[0]), scheme)
  base = load_config(f'{ROOT}/configs/multi30k.py:en-de')
  config = changed(base, RECIPE | depth(*layers) | row | {'name': variant})
  alike = not (
    config.model.encoder.owns_layer_inputs
    or config.model.decoder.owns_layer_inputs
  )
  return changed(config, {'model.scan_layers': alike})


def layers_of(stacks: str) -> tuple[int, int]:
  """The layers of the encoder and the decoder of '60+12'."""
  match = re.fullmatch(r'([1-9]\d*)\+([1-9]\d*)', stacks)
  if not match:
    raise InputError(
      f'{stacks!r} is no depth; give ENCODER+DECODER layers, 60+12 for example'
    )
  return int(match[1]), int(match[2])
