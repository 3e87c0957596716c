"""A first translator: English to German on the corpus in the package.

Paper     Vaswani et al. (2017), pre-norm, 2+2 layers of width 128
Data      none to fetch: dates, numbers, currencies, units, names (CLDR)
Command   make quickstart, with fusion=linear on both sides
Hardware  4 minutes on 2 CPU cores, 2 without fusion, preparation and
          decoding included
Score     en-de: 97.00 BLEU on the held-out test split; 96.67 without fusion
Variants  any pair of the embedded languages, quickstart:fr-nl
"""

from fusion_jax.config import (
  BatchConfig,
  DataConfig,
  DecodingConfig,
  ExperimentConfig,
  FilterConfig,
  ModelConfig,
  OptimizerConfig,
  TokenizerConfig,
  TrainingConfig,
)
from fusion_jax.config.flags import language_pair
from fusion_jax.data.embedded import LANGUAGES


def get_config(variant: str = 'en-de') -> ExperimentConfig:
  """A config for the language pair SOURCE-TARGET."""
  source, target = language_pair(variant, LANGUAGES)
  return ExperimentConfig(
    name=f'quickstart_{source}{target}',
    data=DataConfig(
      source_language=source,
      target_language=target,
      tokenizer=TokenizerConfig(vocabulary_size=2_000),
      filter=FilterConfig(max_length=64),
      batch=BatchConfig(tokens=2_048, shapes=4),
    ),
    model=ModelConfig(
      width=128,
      filter=512,
      heads=4,
      encoder_layers=2,
      decoder_layers=2,
      norm='pre',
      dropout=0.0,
      embedding_dropout=0.0,
    ),
    optimizer=OptimizerConfig(
      schedule='inverse_sqrt', peak=3e-3, warmup_steps=300
    ),
    training=TrainingConfig(
      steps=700,
      validate_every=700,
      save_every=350,
      translate_sentences=200,
      keep_last=2,
    ),
    decoding=DecodingConfig(max_source_length=64),
  )
