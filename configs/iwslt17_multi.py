"""IWSLT-2017, de, it, nl and ro with English in one model: GTRANS.

Paper     Yang et al. (2022), TASLP, Table IV, mean of eight directions: 29.39
          BLEU (post_norm), 31.43 (gtrans) (theirs, on tokenised text; not
          measured here)
Data      TED talks, some 200,000 pairs of each; files {de,it,nl,ro}-en/
          {train,dev2010,tst2017}.{lang} in data.root, not tokenised
Command   fusion-jax train --config=iwslt17_multi
            --config.data.root=DIR --workdir=runs/iwslt17
          fusion-jax decode --workdir=runs/iwslt17 --average=5
            --source_language=ro --target_language=en --input=tst2017.ro
            --reference=tst2017.en
Hardware  one GPU; their 15 epochs of 1.7M pairs are about 100,000 steps
Variants  6+6 layers of width 512, filter 2,048, one tied table of 40,000
          joint subwords, dropout 0.2, warm-up 8,000 to 5e-4, 4,096 tokens,
          beam 8, no length penalty, the last 5 checkpoints averaged. They do
          not say how a source tells the target language: here a tag does
          (Johnson et al. 2017), and pairs are seen in proportion.
            pre_norm, post_norm, transparent, mlrf, dlcl, rezero,
            gtrans (the default), gtrans_no_encoder, gtrans_no_decoder
"""

from fusion_jax.config import (
  BatchConfig,
  DataConfig,
  DecodingConfig,
  Direction,
  ExperimentConfig,
  FilterConfig,
  ModelConfig,
  OptimizerConfig,
  TokenizerConfig,
  TrainingConfig,
)
from fusion_jax.config.directions import both_ways, from_files
from fusion_jax.config.presets import YANG_2022, changed, choose

_PAIRS = [(language, 'en') for language in ('de', 'it', 'nl', 'ro')]


def get_config(variant: str = 'gtrans') -> ExperimentConfig:
  """Section III of Yang et al. (2022), changed by the row of the variant."""
  row = choose(YANG_2022, variant)
  config = ExperimentConfig(
    name=f'iwslt17_{variant}',
    data=DataConfig(
      directions=tuple(map(_direction, both_ways(_PAIRS))),
      target_tag='<2{lang}>',
      tokenizer=TokenizerConfig(algorithm='bpe', vocabulary_size=40_000),
      batch=BatchConfig(tokens=4_096),
      filter=FilterConfig(max_length=256),
    ),
    model=ModelConfig(
      dropout=0.2, embedding_dropout=0.2, initialization='glorot'
    ),
    optimizer=OptimizerConfig(schedule='inverse_sqrt', warmup_steps=8_000),
    training=TrainingConfig(
      steps=100_000, loss_chunk=2_048, validate_every=5_000, save_every=5_000
    ),
    decoding=DecodingConfig(beam_size=8, length_penalty='none'),
  )
  return changed(config, row)


def _direction(pair: tuple[str, str]) -> Direction:
  (other,) = set(pair) - {'en'}
  files = f'{other}-en/{{split}}.{{lang}}'
  return from_files(pair, files, ('train', 'dev2010', 'tst2017'))
