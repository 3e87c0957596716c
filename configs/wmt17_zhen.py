"""WMT-2017 Chinese to English: Transformer base and big, and their fusions.

Paper     Dou et al. (2018, 2019): 24.13 and 24.56 BLEU on newstest2017 with
          base and big; 24.76 and 25.10 with hierarchical_diversity, 24.81
          and 25.00 with em_routing (theirs; not measured here)
Data      20.6M pairs from TFDS (wmt17_translate/zh-en), newsdev2017 for
          validation, newstest2017 for the test
Command   fusion-jax train --config=wmt17_zhen:base
            --workdir=runs/wmt17_base
          fusion-jax train --config=wmt17_zhen:em_routing
            --workdir=runs/wmt17_em --init_from=runs/wmt17_base
Hardware  the papers: 8 P40
Variants  warm-up 4,000, 32,768 tokens, dropout 0.1 (big: 0.3), beam 4, length
          penalty 0.6. The papers start from the trained base or big, with
          tables that are not tied; their averaging is not said.
            base, hierarchical_diversity, em_routing
            big, big_hierarchical_diversity, big_em_routing
"""

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import BIG, DOU_2018, DOU_2019, changed, choose

_BASE = {
  'base': {},
  'hierarchical_diversity': DOU_2018['hierarchical_diversity'],
  'em_routing': DOU_2019['em_routing'],
}
_VARIANTS = _BASE | {
  'big': BIG,
  'big_hierarchical_diversity': _BASE['hierarchical_diversity'] | BIG,
  'big_em_routing': _BASE['em_routing'] | BIG,
}


def get_config(variant: str = 'base') -> ExperimentConfig:
  """One vocabulary a side, since the scripts differ."""
  row = choose(_VARIANTS, variant)
  recipe = {
    'name': f'wmt17_zhen_{variant}',
    'data.source_language': 'zh',
    'data.target_language': 'en',
    'data.train': ('tfds:wmt17_translate/zh-en:train',),
    'data.valid': ('tfds:wmt17_translate/zh-en:validation',),
    'data.test': ('tfds:wmt17_translate/zh-en:test',),
    'data.tokenizer.algorithm': 'bpe',
    'data.tokenizer.vocabulary_size': 32_000,
    'data.tokenizer.joint': False,
    'data.tokenizer.character_coverage': 0.9995,
    'data.tokenizer.byte_fallback': True,
    'data.batch.tokens': 32_768,
    'data.batch.length_multiple': 8,
    'model.tied_embeddings': 'target_output',
    'model.compute_dtype': 'bfloat16',
    'model.initialization': 'glorot',
    'model.flatten_positions': False,
    'optimizer.schedule': 'vaswani',
    'optimizer.warmup_steps': 4_000,
    'training.steps': 100_000,
    'training.loss_chunk': 4_096,
    'training.validate_every': 2_500,
    'training.save_every': 2_500,
    'training.keep_last': 20,
  }
  return changed(ExperimentConfig(), recipe | row)
