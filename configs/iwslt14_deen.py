"""IWSLT-2014 German to English, the baseline of the MLRF paper.

Paper     Wang et al. (2018), COLING: 31.75 BLEU (case-insensitive
          multi-bleu, theirs; not measured here)
Data      160K pairs of TED talks; files {train,valid,test}.{de,en} in
          data.root, not tokenised
Command   python train.py --config=configs/iwslt14_deen.py
            --config.data.root=DIR --workdir=runs/iwslt14
Hardware  one GPU; 40 epochs of the paper are 80,000 steps
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


def get_config() -> ExperimentConfig:
  """Section 4.1 of the paper: 3+3 layers of width 256, 80 sentences a batch."""
  return ExperimentConfig(
    name='iwslt14_deen',
    data=DataConfig(
      source_language='de',
      target_language='en',
      train=('train.{lang}',),
      valid=('valid.{lang}',),
      test=('test.{lang}',),
      tokenizer=TokenizerConfig(algorithm='bpe', vocabulary_size=10_000),
      filter=FilterConfig(max_length=100),
      batch=BatchConfig(tokens=2_048),
    ),
    model=ModelConfig(
      width=256,
      filter=1_024,
      heads=4,
      encoder_layers=3,
      decoder_layers=3,
      tied_embeddings='none',
      output_bias=True,
      initialization='mlrf',
    ),
    optimizer=OptimizerConfig(schedule='vaswani', warmup_steps=16_000),
    training=TrainingConfig(
      steps=80_000,
      label_smoothing=0.0,
      validate_every=2_000,
      save_every=2_000,
    ),
    decoding=DecodingConfig(beam_size=8, alpha=1.6),
  )
