"""WMT-2014 English to German, Transformer base and big.

Paper     Vaswani et al. (2017): 27.3 and 28.4 BLEU on newstest2014
          (tokenised, theirs; not measured here); the baseline of Dou et al.
          (2018, 2019)
Data      4.5M pairs from TFDS (wmt14_translate/de-en), newstest2013 for
          validation, newstest2014 for the test
Command   python train.py --config=configs/wmt14_ende.py:base
            --workdir=runs/wmt14_base
          python decode.py --workdir=runs/wmt14_base --average=5 ...
Hardware  the paper: 12 hours (base) and 3.5 days (big) on 8 P100
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
  """Table 3 and section 5 of the paper; `variant` is base or big."""
  if variant not in _STEPS:
    raise InputError(
      f'--config: no variant {variant!r}; there are {", ".join(_STEPS)}'
    )
  return ExperimentConfig(
    name=f'wmt14_ende_{variant}',
    data=DataConfig(
      source_language='en',
      target_language='de',
      train=('tfds:wmt14_translate/de-en:train',),
      valid=('tfds:wmt14_translate/de-en:validation',),
      test=('tfds:wmt14_translate/de-en:test',),
      tokenizer=TokenizerConfig(algorithm='bpe', vocabulary_size=32_000),
      batch=BatchConfig(tokens=32_768, length_multiple=8),
    ),
    model=dataclasses.replace(PRESETS[variant], compute_dtype='bfloat16'),
    optimizer=OptimizerConfig(schedule='vaswani', warmup_steps=4_000),
    training=TrainingConfig(
      steps=_STEPS[variant],
      loss_chunk=4_096,
      validate_every=2_500,
      save_every=2_500,
      keep_last=20,
    ),
  )
