"""A config file: one training for all fusion schemes, at two sizes.

    python train.py --config=benchmarks/fusion_recipes.py:RECIPE/SCHEME ...

Recipes   small: minutes on 2 CPU cores, far from convergence
          full: as configs/multi30k.py, for a GPU
Schemes   of benchmarks/schemes.py
Data      as configs/multi30k.py
"""

from benchmarks.schemes import BASELINE, schemes
from benchmarks.serving import ROOT
from fusion_jax.config import ExperimentConfig
from fusion_jax.flags import load_config
from fusion_jax.presets import changed, choose, depth

# Checkpoints of so many runs fill a disk.
_KEPT = {'training.keep_last': 1, 'training.keep_best': 1}

RECIPES = {
  'small': {
    'data.tokenizer.vocabulary_size': 4_000,
    'data.batch.tokens': 1_024,
    'data.batch.shapes': 3,
    'model.width': 128,
    'model.filter': 512,
    **depth(4, 4),
    'model.dropout': 0.1,
    'model.embedding_dropout': 0.1,
    'optimizer.peak': 3e-3,
    'optimizer.warmup_steps': 200,
    'training.steps': 600,
    'training.log_every': 50,
    'training.validate_every': 600,
    'training.translate_sentences': 8,
    'training.metric': 'loss',
    'decoding.beam_size': 1,
    **_KEPT,
  },
  'full': _KEPT,
}


def get_config(variant: str = f'small/{BASELINE}') -> ExperimentConfig:
  """The config RECIPE/SCHEME."""
  recipe, _, scheme = variant.partition('/')
  base = load_config(f'{ROOT}/configs/multi30k.py:en-de')
  base = changed(base, choose(RECIPES, recipe))
  table = schemes(base.model.encoder_layers)
  return changed(base, choose(table, scheme).row | {'name': variant})
