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

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.flags import language_pair
from fusion_jax.config.presets import changed


def get_config(variant: str = 'en-de') -> ExperimentConfig:
  """A config for the language pair SOURCE-TARGET."""
  source, target = language_pair(variant)
  return changed(
    ExperimentConfig(),
    {
      'name': f'multi30k_{source}{target}',
      'data.source_language': source,
      'data.target_language': target,
      'data.train': ('train.{lang}.gz',),
      'data.valid': ('val.{lang}.gz',),
      'data.test': ('test_2016_flickr.{lang}.gz',),
      'data.tokenizer.vocabulary_size': 8_000,
      'data.filter.max_length': 64,
      'data.batch.tokens': 2_048,
      'data.batch.row_multiple': 4,
      'model.width': 256,
      'model.filter': 1_024,
      'model.heads': 4,
      'model.encoder_layers': 3,
      'model.decoder_layers': 3,
      'model.norm': 'pre',
      'model.dropout': 0.2,
      'model.embedding_dropout': 0.2,
      'optimizer.schedule': 'inverse_sqrt',
      'optimizer.peak': 2e-3,
      'optimizer.warmup_steps': 1_000,
      'training.steps': 3_600,
      'training.validate_every': 600,
      'training.save_every': 200,
      'training.keep_last': 8,
      'decoding.beam_size': 5,
      'decoding.alpha': 1.4,
      'decoding.max_source_length': 64,
    },
  )
