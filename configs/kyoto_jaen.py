"""Kyoto wiki corpus, Japanese to English.

Paper     Vaswani et al. (2017), base, pre-norm
Data      428K pairs of NICT's Kyoto wiki corpus; files
          {train,valid,test}.{ja,en}.xz in data.root, Japanese not segmented
Command   fusion-jax train --config=kyoto_jaen
            --config.data.root=DIR --workdir=runs/kyoto
Hardware  one GPU; no score measured yet
"""

import dataclasses

from fusion_jax.config import (
  PRESETS,
  BatchConfig,
  DataConfig,
  ExperimentConfig,
  FilterConfig,
  OptimizerConfig,
  TokenizerConfig,
  TrainingConfig,
)


def get_config() -> ExperimentConfig:
  """One unigram vocabulary of 16,000 a side, rare characters as bytes."""
  return ExperimentConfig(
    name='kyoto_jaen',
    data=DataConfig(
      source_language='ja',
      target_language='en',
      train=('train.{lang}.xz',),
      valid=('valid.{lang}.xz',),
      test=('test.{lang}.xz',),
      tokenizer=TokenizerConfig(
        vocabulary_size=16_000,
        joint=False,
        character_coverage=0.9995,
        byte_fallback=True,
      ),
      filter=FilterConfig(max_length=128, max_length_ratio=4.0),
      batch=BatchConfig(tokens=16_384),
    ),
    model=dataclasses.replace(
      PRESETS['base'],
      norm='pre',
      tied_embeddings='target_output',
      initialization='fan_in',
    ),
    optimizer=OptimizerConfig(
      schedule='inverse_sqrt', peak=7e-4, warmup_steps=4_000
    ),
    training=TrainingConfig(
      steps=50_000,
      loss_chunk=2_048,
      validate_every=2_000,
      save_every=1_000,
      translate_sentences=500,
    ),
  )
