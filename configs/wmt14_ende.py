"""WMT-2014 English to German: Transformer base and big, and their fusions.

Paper     Vaswani et al. (2017): 27.3 and 28.4 BLEU on newstest2014
          Dou et al. (2018, 2019): 27.64 to 28.81 (base), 29.21 (big)
          Emelin et al. (2019): 27.3 to 28.3 (base), 29.4 (big)
          Yang et al. (2022): 29.22 to 30.01 (big)
          (all tokenised and theirs; not measured here)
Data      4.5M pairs from TFDS (wmt14_translate/de-en), newstest2013 for
          validation, newstest2014 for the test
Command   fusion-jax train --config=wmt14_ende:base
            --workdir=runs/wmt14_base
          fusion-jax decode --workdir=runs/wmt14_base --average=5 ...
          fusion-jax train --config=wmt14_ende:hierarchical_diversity
            --workdir=runs/wmt14_hierarchical --init_from=runs/wmt14_base
Hardware  Vaswani: 12 hours (base) and 3.5 days (big) on 8 P100; Dou: 8 P40;
          Emelin: 43 to 50 hours (base) on 4 P100; Yang: 128 GPUs, or as many
          steps of accumulation
Variants  Vaswani and Dou: warm-up 4,000, 32,768 tokens, dropout 0.1 (big:
          0.3), beam 4, length penalty 0.6. Dou start from the trained base or
          big, with tables that are not tied; their averaging is not said.
          _diversity adds the reward of their Eq. 9.
            base, dense, linear, iterative, hierarchical, multi_layer_2,
            multi_layer_3, iterative_diversity, hierarchical_diversity,
            multi_layer_2_diversity, dynamic_combination, dynamic_routing,
            em_routing, em_routing_encoder, em_routing_decoder,
            em_routing_own_layer
            hierarchical_encoder_diversity, hierarchical_decoder_diversity,
            hierarchical_residual_none_diversity,
            hierarchical_residual_top_diversity, hierarchical_relu_diversity,
            hierarchical_attention_diversity, and the same of iterative
            big, big_hierarchical_diversity, big_em_routing
          Emelin: pre-norm, attention without biases, 25,000 tokens, dropout
          0.1 (big: embeddings 0.3), warm-up 4,000, with shortcuts 6,000,
          with feature fusion 8,000, big 16,000, beam 4, length penalty 0.6,
          --average=5 (big: 16).
            emelin_base, lexical_shortcuts, feature_fusion,
            feature_fusion_cross, feature_fusion_both,
            feature_fusion_non_lexical, feature_fusion_encoder,
            feature_fusion_decoder
            small_emelin_base, small_lexical_shortcuts, small_feature_fusion
            big_emelin_base, big_feature_fusion
          Yang: big, 40K subwords, warm-up 4,000 to 5e-4, 131,072 tokens,
          dropout 0.3, beam 8, no length penalty, no averaging: the best
          checkpoint. With depths, ENCODER_DECODER: base, groups of 6.
            pre_norm, post_norm, transparent, mlrf, dlcl, rezero, gtrans,
            gtrans_no_encoder, gtrans_no_decoder
            gtrans_12_12, gtrans_24_18, gtrans_36_30, gtrans_60_12
          Later schemes, on the base recipe, which is ours here: published
          for language models (denseformer, skip_gains: Pagliardini et al. 2024;
          mudd: Xiao et al. 2025; grn, deep_cross_attention: Heddes et al. 2025;
          hyper_connections: Zhu et al. 2024, _manifold: Xie et al. 2025;
          attention_residuals: Kimi Team 2026, _delta: Luo 2026;
          value_residual: Zhou et al. 2024), for WMT16 Ro-En
          (surface_fusion and transparent_by_feature: Liu et al. 2021), or for
          deep stacks with recipes of their own (b2t: Takase et al. 2023;
          deepnorm: Wang et al. 2022).
            denseformer, denseformer_output, skip_gains, mudd, mudd_memory,
            mudd_one_way, grn_v1, grn_v2, grn_v3, deep_cross_attention,
            deep_cross_attention_last_2,
            hyper_connections, hyper_connections_static,
            hyper_connections_identity_mix, hyper_connections_manifold,
            attention_residuals, attention_residuals_block,
            attention_residuals_heads, attention_residuals_layer,
            attention_residuals_delta, b2t, deepnorm, surface_fusion,
            surface_fusion_soft, surface_fusion_learned, value_residual,
            value_residual_shared, transparent_by_feature
"""

from fusion_jax.config import ExperimentConfig
from fusion_jax.config.presets import (
  BIG,
  DOU_2018,
  DOU_2019,
  EMELIN_2019,
  SINCE_2020,
  YANG_2022,
  both_sides,
  changed,
  choose,
  depth,
)

_EMELIN = {
  'data.batch.tokens': 25_000,
  'model.norm': 'pre',
  'model.norm_epsilon': 1e-5,
  'model.attention_bias': False,
  'model.attention_dropout': 0.1,
  'model.activation_dropout': 0.1,
  'training.steps': 150_000,
  'training.validate_every': 4_000,
  'training.save_every': 4_000,
}
_EMELIN_SMALL = {'model.width': 256, 'model.filter': 1_024}
_EMELIN_BIG = BIG | {
  'model.dropout': 0.1,
  'model.embedding_dropout': 0.3,
  'optimizer.beta2': 0.998,
  'optimizer.warmup_steps': 16_000,
}

_YANG = {
  'data.tokenizer.vocabulary_size': 40_000,
  'data.batch.tokens': 131_072,
  'model.dropout': 0.3,
  'model.embedding_dropout': 0.3,
  'optimizer.schedule': 'inverse_sqrt',
  'optimizer.accumulation': 16,
  'training.steps': 80_000,
  'decoding.beam_size': 8,
  'decoding.length_penalty': 'none',
}
_YANG_BIG = BIG | _YANG
_YANG_DEEP = _YANG | both_sides('gtrans', group_size=6)
_SCAN = {'scan_layers': True, 'remat': True}

_VARIANTS = {
  **DOU_2018,
  **DOU_2019,
  'big': BIG,
  'big_hierarchical_diversity': DOU_2018['hierarchical_diversity'] | BIG,
  'big_em_routing': DOU_2019['em_routing'] | BIG,
  **{name: _EMELIN | row for name, row in EMELIN_2019.items()},
  **{
    f'small_{name}': _EMELIN | EMELIN_2019[name] | _EMELIN_SMALL
    for name in ('emelin_base', 'lexical_shortcuts', 'feature_fusion')
  },
  **{
    f'big_{name}': _EMELIN | EMELIN_2019[name] | _EMELIN_BIG
    for name in ('emelin_base', 'feature_fusion')
  },
  **{name: _YANG_BIG | row for name, row in YANG_2022.items()},
  'gtrans_12_12': _YANG_DEEP | depth(12, 12, scan_layers=True),
  'gtrans_24_18': _YANG_DEEP | depth(24, 18, **_SCAN),
  'gtrans_36_30': _YANG_DEEP | depth(36, 30, **_SCAN),
  'gtrans_60_12': _YANG_DEEP | depth(60, 12, **_SCAN),
  **SINCE_2020,
}


def get_config(variant: str = 'base') -> ExperimentConfig:
  """Base as in Vaswani et al. (2017), changed by the row of the variant."""
  row = choose(_VARIANTS, variant)
  recipe = {
    'name': f'wmt14_ende_{variant}',
    'data.source_language': 'en',
    'data.target_language': 'de',
    'data.train': ('tfds:wmt14_translate/de-en:train',),
    'data.valid': ('tfds:wmt14_translate/de-en:validation',),
    'data.test': ('tfds:wmt14_translate/de-en:test',),
    'data.tokenizer.algorithm': 'bpe',
    'data.tokenizer.vocabulary_size': 32_000,
    'data.batch.tokens': 32_768,
    'data.batch.length_multiple': 8,
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
