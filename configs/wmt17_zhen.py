"""WMT-2017 Chinese to English, Transformer base and big.

Paper     the baseline of Dou et al. (2018, 2019): 24.13 and 24.56 BLEU on
          newstest2017 (theirs; not measured here)
Data      20.6M pairs from TFDS (wmt17_translate/zh-en), newsdev2017 for
          validation, newstest2017 for the test
Command   python train.py --config=configs/wmt17_zhen.py:base
            --workdir=runs/wmt17_base
Hardware  the papers: 8 P40
Variants  base, big
"""

import dataclasses

from fusion_jax.config import (
  PRESETS,
  BatchConfig,
  DataConfig,
  ExperimentConfig,
  OptimizerConfig,
  TokenizerConfig,
  TrainingConfig,
)
from fusion_jax.errors import InputError

_STEPS = {'base': 100_000, 'big': 300_000}


def get_config(variant: str = 'base') -> ExperimentConfig:
  """One vocabulary a side, since the scripts differ; base or big."""
  if variant not in _STEPS:
    raise InputError(
      f'--config: no variant {variant!r}; there are {", ".join(_STEPS)}'
    )
  return ExperimentConfig(
    name=f'wmt17_zhen_{variant}',
    data=DataConfig(
      source_language='zh',
      target_language='en',
      train=('tfds:wmt17_translate/zh-en:train',),
      valid=('tfds:wmt17_translate/zh-en:validation',),
      test=('tfds:wmt17_translate/zh-en:test',),
      tokenizer=TokenizerConfig(
        algorithm='bpe',
        vocabulary_size=32_000,
        joint=False,
        character_coverage=0.9995,
        byte_fallback=True,
      ),
      batch=BatchConfig(tokens=32_768, length_multiple=8),
    ),
    model=dataclasses.replace(
      PRESETS[variant],
      tied_embeddings='target_output',
      compute_dtype='bfloat16',
    ),
    optimizer=OptimizerConfig(schedule='vaswani', warmup_steps=4_000),
    training=TrainingConfig(
      steps=_STEPS[variant],
      loss_chunk=4_096,
      validate_every=2_500,
      save_every=2_500,
      keep_last=20,
    ),
  )
