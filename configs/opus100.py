"""OPUS-100, 94 languages with English in one model: GTRANS.

Paper     Yang et al. (2022), TASLP, Table V, means of 94 directions into
          English and out of it: 33.9 and 28.9 BLEU (their baseline), 35.5 and
          30.2 (GTRANS started from XLM-R); theirs, not measured here
Data      Zhang et al. (2020): 55M pairs, at most 1M a language; the files of
          opus-100-corpus/v1.0/supervised are in data.root, such as
          af-en/opus.af-en-{train,dev,test}.{lang}
Command   fusion-jax train --config=opus100
            --config.data.root=DIR --workdir=runs/opus100
          fusion-jax decode --workdir=runs/opus100 --average=5
            --source_language=af --target_language=en --input=FILE
Hardware  several GPUs or TPUs
Variants  12+6 layers of width 768, filter 3,072, 12 heads, dropout 0.1, beam 8,
          no length penalty, the last 5 checkpoints averaged. They start from
          XLM-R with its vocabulary of 250,000; here the model starts fresh
          with 64,000 joint subwords. Tags and temperature 5 are those of
          Zhang et al.; batches and steps are ours.
            post_norm, gtrans (the default)
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

# All of OPUS-100 but an, dz, hy, mn and yo, which have no test set.
_LANGUAGES = """
  af am ar as az be bg bn br bs ca cs cy da de el eo es et eu fa fi fr fy ga gd
  gl gu ha he hi hr hu id ig is it ja ka kk km kn ko ku ky li lt lv mg mk ml mr
  ms mt my nb ne nl nn no oc or pa pl ps pt ro ru rw se sh si sk sl sq sr sv ta
  te tg th tk tr tt ug uk ur uz vi wa xh yi zh zu
"""
_PAIRS = [(language, 'en') for language in _LANGUAGES.split()]
_VARIANTS = {name: YANG_2022[name] for name in ('post_norm', 'gtrans')}


def get_config(variant: str = 'gtrans') -> ExperimentConfig:
  """Section III of Yang et al. (2022), changed by the row of the variant."""
  row = choose(_VARIANTS, variant)
  config = ExperimentConfig(
    name=f'opus100_{variant}',
    data=DataConfig(
      directions=tuple(map(_direction, both_ways(_PAIRS))),
      target_tag='<2{lang}>',
      mixing_temperature=5.0,
      tokenizer=TokenizerConfig(
        vocabulary_size=64_000,
        character_coverage=0.9995,
        byte_fallback=True,
        training_lines=10_000_000,
      ),
      batch=BatchConfig(tokens=65_536),
      filter=FilterConfig(max_length=200),
    ),
    model=ModelConfig(
      width=768,
      filter=3_072,
      heads=12,
      encoder_layers=12,
      decoder_layers=6,
      compute_dtype='bfloat16',
      flatten_positions=False,
      scan_layers=True,
      initialization='glorot',
    ),
    optimizer=OptimizerConfig(
      schedule='inverse_sqrt', warmup_steps=8_000, accumulation=2
    ),
    training=TrainingConfig(
      steps=500_000,
      loss_chunk=2_048,
      validate_every=10_000,
      save_every=5_000,
      translate_sentences=100,
    ),
    decoding=DecodingConfig(beam_size=8, length_penalty='none'),
  )
  return changed(config, row)


def _direction(pair: tuple[str, str]) -> Direction:
  name = '-'.join(sorted(pair))
  files = f'{name}/opus.{name}-{{split}}.{{lang}}'
  return from_files(pair, files, ('train', 'dev', 'test'))
