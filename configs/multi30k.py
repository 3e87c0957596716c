"""Multi30k image captions, any pair of languages whose files are there.

Paper     Vaswani et al. (2017), pre-norm, 3+3 layers of width 256
Data      Elliott et al. (2016): 29,000 / 1,014 / 1,000 pairs, 12 words;
          files {train,val,test_2016_flickr}.{lang}.gz in data.root
Command   fusion-jax train --config=multi30k:en-de
            --config.data.root=DIR --workdir=runs/multi30k
          fusion-jax decode --workdir=runs/multi30k --average=5
            --input=test_2016_flickr.en --reference=test_2016_flickr.de
Hardware  42 minutes on 2 CPU cores
Score     en-de: 39.64 BLEU, 63.40 chrF (cased, detokenised sacreBLEU)
Variants  SOURCE-TARGET, any two of de, en, fr, cs or of your own files
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


def get_config(variant: str = 'en-de') -> ExperimentConfig:
  """A config for the language pair SOURCE-TARGET."""
  source, target = language_pair(variant)
  return ExperimentConfig(
    name=f'multi30k_{source}{target}',
    data=DataConfig(
      source_language=source,
      target_language=target,
      train=('train.{lang}.gz',),
      valid=('val.{lang}.gz',),
      test=('test_2016_flickr.{lang}.gz',),
      tokenizer=TokenizerConfig(vocabulary_size=8_000),
      filter=FilterConfig(max_length=64),
      batch=BatchConfig(tokens=2_048, row_multiple=4),
    ),
    model=ModelConfig(
      width=256,
      filter=1_024,
      heads=4,
      encoder_layers=3,
      decoder_layers=3,
      norm='pre',
      dropout=0.2,
      embedding_dropout=0.2,
    ),
    optimizer=OptimizerConfig(
      schedule='inverse_sqrt', peak=2e-3, warmup_steps=1_000
    ),
    training=TrainingConfig(
      steps=3_600, validate_every=600, save_every=200, keep_last=8
    ),
    decoding=DecodingConfig(beam_size=5, alpha=1.4, max_source_length=64),
  )
