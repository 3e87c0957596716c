"""Kyoto wiki corpus, Japanese to English.

Paper     Vaswani et al. (2017), base, pre-norm
Data      428K pairs of NICT's Kyoto wiki corpus; files
          {train,valid,test}.{ja,en}.xz in data.root, Japanese not segmented
Command   fusion-jax train --config=kyoto_jaen
            --config.data.root=DIR --workdir=runs/kyoto
Hardware  one GPU; no score measured yet
"""

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import changed


def get_config() -> ExperimentConfig:
  """One unigram vocabulary of 16,000 a side, rare characters as bytes."""
  return changed(
    ExperimentConfig(),
    {
      'name': 'kyoto_jaen',
      'data.source_language': 'ja',
      'data.target_language': 'en',
      'data.train': ('train.{lang}.xz',),
      'data.valid': ('valid.{lang}.xz',),
      'data.test': ('test.{lang}.xz',),
      'data.tokenizer.vocabulary_size': 16_000,
      'data.tokenizer.joint': False,
      'data.tokenizer.character_coverage': 0.9995,
      'data.tokenizer.byte_fallback': True,
      'data.filter.max_length': 128,
      'data.filter.max_length_ratio': 4.0,
      'data.batch.tokens': 16_384,
      'model.norm': 'pre',
      'model.tied_embeddings': 'target_output',
      'optimizer.schedule': 'inverse_sqrt',
      'optimizer.peak': 7e-4,
      'optimizer.warmup_steps': 4_000,
      'training.steps': 50_000,
      'training.loss_chunk': 2_048,
      'training.validate_every': 2_000,
      'training.save_every': 1_000,
      'training.translate_sentences': 500,
    },
  )
