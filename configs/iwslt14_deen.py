"""IWSLT-2014 German to English: MLRF and GTRANS, and their baselines.

Paper     Wang et al. (2018), COLING: 31.75 BLEU, 32.67 after their second
          phase, 33.59 with mlrf_fnn_sa (case-insensitive multi-bleu)
          Yang et al. (2022), TASLP: 34.27 (post_norm), 35.32 (gtrans), 35.68
          (gtrans_12_12)
          (theirs; not measured here)
Data      160K pairs of TED talks; files {train,valid,test}.{de,en} in
          data.root, not tokenised
Command   fusion-jax train --config=iwslt14_deen
            --config.data.root=DIR --workdir=runs/iwslt14
          and the second phase of Wang:
          fusion-jax train --config=iwslt14_deen:mlrf_base_phase2
            --config.data.root=DIR --init_from=runs/iwslt14
            --workdir=runs/iwslt14_phase2
Hardware  one GPU; 40 epochs of Wang are 80,000 steps, then 20 are 100,000; 80
          of Yang are about 20,000
Variants  Wang: 3+3 layers of width 256, 80 sentences, warm-up 16,000, dropout
          0.1, no label smoothing, beam 8, length penalty 1.6, no averaging.
          This is their first phase. The second is a run of its own, with
          _phase2 after the name and the first as its --init_from: 20 epochs
          in which Adam starts anew, its moments and count at 0, at a constant
          5e-5 with 32 sentences. It starts at the first's best checkpoint.
            mlrf_base (the default), mlrf_base_4_layers, mlrf_base_6_layers
            mlrf_encoder_average, mlrf_encoder_fnn, mlrf_encoder_sa4,
            mlrf_encoder_sa6
            mlrf_decoder_average, mlrf_decoder_fnn, mlrf_decoder_sa4,
            mlrf_decoder_sa4_per_layer, mlrf_decoder_sa6,
            mlrf_decoder_sa6_per_hop
            mlrf_both_fnn, mlrf_both_sa4, mlrf_fnn_sa
            mlrf_encoder_fnn_no_layer_embedding,
            mlrf_decoder_sa4_no_layer_embedding,
            mlrf_fnn_sa_no_layer_embedding,
            mlrf_encoder_fnn_no_word_embedding,
            mlrf_decoder_sa4_no_word_embedding,
            mlrf_fnn_sa_no_word_embedding
          Yang: 6+6 layers of width 512, filter 1,024, 8 heads, one tied
          table, 16,384 tokens, warm-up 4,000 to 5e-4, dropout 0.3, beam 8, no
          length penalty, no averaging: the best checkpoint. With depths,
          ENCODER_DECODER, the groups are of 3 and 2 layers, and of 3 in
          gtrans_60_12 and gtrans_6_18.
            pre_norm, post_norm, transparent, mlrf, dlcl, rezero, gtrans,
            gtrans_no_encoder, gtrans_no_decoder, and the same with _12_12
            gtrans_24_18, gtrans_no_encoder_24_18, gtrans_no_decoder_24_18,
            post_norm_24_18, and the same with _36_30
            gtrans_60_12, gtrans_6_18
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
from fusion_jax.config.presets import (
  WANG_2018,
  YANG_2022,
  both_sides,
  changed,
  choose,
  depth,
)

_YANG = {
  'data.batch.tokens': 16_384,
  'model.width': 512,
  'model.heads': 8,
  'model.encoder_layers': 6,
  'model.decoder_layers': 6,
  'model.tied_embeddings': 'all',
  'model.output_bias': False,
  'model.initialization': 'glorot',
  'model.dropout': 0.3,
  'model.embedding_dropout': 0.3,
  'optimizer.schedule': 'inverse_sqrt',
  'optimizer.warmup_steps': 4_000,
  'training.steps': 20_000,
  'training.label_smoothing': 0.1,
  'training.loss_chunk': 2_048,
  'training.validate_every': 1_000,
  'training.save_every': 1_000,
  'decoding.length_penalty': 'none',
}
_YANG_ROWS = {name: _YANG | row for name, row in YANG_2022.items()}
_YANG_THREES = _YANG | both_sides('gtrans', group_size=3)
_SCAN = {'scan_layers': True, 'remat': True}

# Restart-Adam: 32 of 80 sentences, and 5 of 2 steps an epoch.
_PHASE_2 = {
  'data.batch.tokens': 820,
  'optimizer.schedule': 'constant',
  'optimizer.peak': 5e-5,
  'optimizer.warmup_steps': 1,
  'training.steps': 100_000,
  'training.validate_every': 5_000,
  'training.save_every': 5_000,
}

_VARIANTS = {
  **WANG_2018,
  **{f'{name}_phase2': row | _PHASE_2 for name, row in WANG_2018.items()},
  **_YANG_ROWS,
  **{
    f'{name}_12_12': row | depth(12, 12, scan_layers=name != 'dlcl')
    for name, row in _YANG_ROWS.items()
  },
  **{
    f'{name}_{encoder}_{decoder}': _YANG_ROWS[name]
    | depth(encoder, decoder, **_SCAN)
    for encoder, decoder in ((24, 18), (36, 30))
    for name in (
      'gtrans',
      'gtrans_no_encoder',
      'gtrans_no_decoder',
      'post_norm',
    )
  },
  'gtrans_60_12': _YANG_THREES | depth(60, 12, **_SCAN),
  'gtrans_6_18': _YANG_THREES | depth(6, 18, scan_layers=True),
}


def get_config(variant: str = 'mlrf_base') -> ExperimentConfig:
  """Section 4.1 of Wang et al. (2018), changed by the row of the variant."""
  row = choose(_VARIANTS, variant)
  suffix = '' if variant == 'mlrf_base' else f'_{variant}'
  config = ExperimentConfig(
    name=f'iwslt14_deen{suffix}',
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
      initialization='fan_in',
    ),
    optimizer=OptimizerConfig(schedule='vaswani', warmup_steps=16_000),
    training=TrainingConfig(
      steps=80_000, label_smoothing=0.0, validate_every=2_000, save_every=2_000
    ),
    decoding=DecodingConfig(beam_size=8, alpha=1.6),
  )
  return changed(config, row)
