"""Rows of the papers' tables, for the files in `configs/`.

A row holds its changes of its paper's baseline: dotted names of fields of
`ExperimentConfig`, as on the command line, and their values. `|` joins rows;
the right one wins.

  DOU_2018     Exploiting Deep Representations, EMNLP 2018: Tables 1, 3, 4
  DOU_2019     Dynamic Layer Aggregation, AAAI 2019: Tables 1, 3, 4
  WANG_2018    Multi-layer Representation Fusion, COLING 2018: Tables 2, 4;
               the best of Table 3
  EMELIN_2019  Lexical Shortcuts, WMT 2019: Tables 1, 4, Figure 5
  YANG_2022    GTRANS, TASLP 2022: Tables 2, 8
  SINCE_2020   later schemes, published without such a table for translation
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from fusion_jax.config import PRESETS
from fusion_jax.errors import InputError

Row = dict[str, Any]
Config = TypeVar('Config')


def choose(rows: Mapping[str, Row], variant: str) -> Row:
  """Return the row of a variant."""
  if variant not in rows:
    raise InputError(
      f'--config: no variant {variant!r}; there are {", ".join(rows)}'
    )
  return rows[variant]


def changed(config: Config, row: Row) -> Config:
  """Return a frozen dataclass with the changes of a row."""
  whole: Any = config
  values: Row = {}
  parts: dict[str, Row] = {}
  for name, value in row.items():
    field, _, rest = name.partition('.')
    if rest:
      parts.setdefault(field, {})[rest] = value
    else:
      values[field] = value
  for field, value in values.items():
    if isinstance(value, Mapping):
      values[field] = type(getattr(config, field))(**value)
  # What a section has may depend on the values beside it.
  whole = dataclasses.replace(whole, **values)
  return dataclasses.replace(
    whole,
    **{
      name: changed(getattr(whole, name), part) for name, part in parts.items()
    },
  )


def _side(fusion: str, options: Row) -> Row:
  return {'fusion': fusion, 'options': options}


def encoder(fusion: str, /, **options: Any) -> Row:
  """Return a row with the scheme of the encoder and its options."""
  return {'model.encoder': _side(fusion, options)}


def decoder(fusion: str, /, **options: Any) -> Row:
  """Return a row with the scheme of the decoder and its options."""
  return {'model.decoder': _side(fusion, options)}


def both_sides(fusion: str, /, **options: Any) -> Row:
  """Return a row with one scheme for both sides and its options."""
  return encoder(fusion, **options) | decoder(fusion, **options)


def attention(name: str, /, **options: Any) -> Row:
  """Return a row with one source of attention for both sides."""
  side = {'attention': name, 'attention_options': options}
  return {'model.encoder': side, 'model.decoder': side}


def depth(encoder_layers: int, decoder_layers: int, **fields: Any) -> Row:
  """Return a row with the depth of both stacks and other model fields."""
  fields = {
    'encoder_layers': encoder_layers,
    'decoder_layers': decoder_layers,
  } | fields
  return {f'model.{field}': value for field, value in fields.items()}


# Transformer big, on top of base (Vaswani et al. 2017, Table 3).
BIG: Row = {
  f'model.{field}': getattr(PRESETS['big'], field)
  for field in ('width', 'filter', 'heads', 'dropout')
} | {'training.steps': 300_000}

_DIVERSITY = {'training.diversity': 1.0}


def _with_diversity(rows: Mapping[str, Row]) -> dict[str, Row]:
  return {f'{name}_diversity': row | _DIVERSITY for name, row in rows.items()}


def _ablations(scheme: str) -> dict[str, Row]:
  return _with_diversity(
    {
      f'{scheme}_encoder': encoder(scheme),
      f'{scheme}_decoder': decoder(scheme),
      f'{scheme}_residual_none': both_sides(scheme, residual='none'),
      f'{scheme}_residual_top': both_sides(scheme, residual='top'),
      f'{scheme}_relu': both_sides(scheme, activation='relu'),
      f'{scheme}_attention': both_sides(scheme, activation='attention'),
    }
  )


_AGGREGATED = {
  'iterative': both_sides('iterative'),
  'hierarchical': both_sides('hierarchical'),
  'multi_layer_2': attention('multi_layer', layers=2),
}

DOU_2018: Mapping[str, Row] = {
  'base': {},
  'dense': both_sides('dense'),
  'linear': both_sides('linear'),
  **_AGGREGATED,
  'multi_layer_3': attention('multi_layer', layers=3),
  **_with_diversity(_AGGREGATED),
  **_ablations('hierarchical'),
  **_ablations('iterative'),
}

DOU_2019: Mapping[str, Row] = {
  'dynamic_combination': both_sides('dynamic_combination'),
  'dynamic_routing': both_sides('dynamic_routing'),
  'em_routing': both_sides('em_routing'),
  'em_routing_encoder': encoder('em_routing'),
  'em_routing_decoder': decoder('em_routing'),
  # Each capsule reads its own layer instead of all layers.
  'em_routing_own_layer': both_sides('em_routing', vote_projection='block'),
}


def _without(name: str) -> dict[str, Row]:
  options = {name: False}
  fnn = encoder('feed_forward', **options)
  sa = decoder('hops', **options)
  short = name.replace('include_', 'word_')
  return {
    f'mlrf_encoder_fnn_no_{short}': fnn,
    f'mlrf_decoder_sa4_no_{short}': sa,
    f'mlrf_fnn_sa_no_{short}': fnn | sa,
  }


WANG_2018: Mapping[str, Row] = {
  'mlrf_base': {},
  'mlrf_base_4_layers': depth(4, 4),
  'mlrf_base_6_layers': depth(6, 6),
  'mlrf_encoder_average': encoder('average'),
  'mlrf_encoder_fnn': encoder('feed_forward'),
  'mlrf_encoder_sa4': encoder('hops', hops=4),
  'mlrf_encoder_sa6': encoder('hops', hops=6),
  'mlrf_decoder_average': decoder('average'),
  'mlrf_decoder_fnn': decoder('feed_forward'),
  'mlrf_decoder_sa4': decoder('hops', hops=4),
  # The best of Table 3, whose models have 6+6 layers.
  'mlrf_decoder_sa4_per_layer': decoder(
    'hops', hops=4, independent='per_layer'
  ),
  'mlrf_decoder_sa6': decoder('hops', hops=6),
  # This form has the size that Table 2 prints for the row above.
  'mlrf_decoder_sa6_per_hop': decoder('hops', hops=6, independent='per_hop'),
  'mlrf_both_fnn': both_sides('feed_forward'),
  'mlrf_both_sa4': both_sides('hops', hops=4),
  'mlrf_fnn_sa': encoder('feed_forward') | decoder('hops', hops=4),
  **_without('layer_embedding'),
  **_without('include_embedding'),
}


def _shortcuts(**options: Any) -> Row:
  return {'attention': 'shortcut', 'attention_options': options}


_FUSED = _shortcuts(feature_fusion=True)
_CROSS = _shortcuts(feature_fusion=True, where='cross')
_BOTH = _shortcuts(feature_fusion=True, where='both')
_FEATURE_FUSION: Mapping[str, Row] = {
  'feature_fusion': attention('shortcut', feature_fusion=True),
  'feature_fusion_cross': {'model.decoder': _CROSS},
  'feature_fusion_both': {'model.encoder': _FUSED, 'model.decoder': _BOTH},
  'feature_fusion_non_lexical': attention(
    'shortcut', feature_fusion=True, source='non_lexical'
  ),
  'feature_fusion_encoder': {'model.encoder': _FUSED},
  'feature_fusion_decoder': {'model.decoder': _FUSED},
}

EMELIN_2019: Mapping[str, Row] = {
  'emelin_base': {},
  'lexical_shortcuts': {'optimizer.warmup_steps': 6_000}
  | attention('shortcut'),
} | {
  name: {'optimizer.warmup_steps': 8_000} | row
  for name, row in _FEATURE_FUSION.items()
}

YANG_2022: Mapping[str, Row] = {
  'pre_norm': {'model.norm': 'pre'},
  'post_norm': {},
  'transparent': encoder('transparent'),
  'mlrf': encoder('feed_forward') | decoder('hops'),
  'dlcl': both_sides('dlcl') | {'model.norm': 'pre'},
  'rezero': {'model.norm': 'rezero'},
  'gtrans': both_sides('gtrans'),
  'gtrans_no_encoder': decoder('gtrans'),
  'gtrans_no_decoder': encoder('gtrans'),
}


def _pre_norm(fusion: str, **options: Any) -> Row:
  """Return a row with pre-norm, as these schemes are published."""
  return {'model.norm': 'pre'} | both_sides(fusion, **options)


_GAINS = {'skip_gains': True}
# The sums start as the plain model.
_AVERAGES = {'norms': 'none', 'start': 'top'}

SINCE_2020: Mapping[str, Row] = {
  'denseformer': _pre_norm('dlcl', **_AVERAGES),
  'denseformer_output': _pre_norm('dlcl', period=6, **_AVERAGES),
  'skip_gains': {
    'model.norm': 'pre',
    'model.encoder': _GAINS,
    'model.decoder': _GAINS,
  },
  'mudd': _pre_norm('mudd'),
  'mudd_memory': {'model.norm': 'pre'}
  | encoder('mudd', memory_ways=2)
  | decoder('mudd'),
  'mudd_one_way': _pre_norm('mudd', ways=1),
  'grn_v1': _pre_norm('grn', kind='scalar'),
  'grn_v2': _pre_norm('grn', kind='vector'),
  'grn_v3': _pre_norm('grn', kind='dynamic'),
  'deep_cross_attention': _pre_norm('grn', ways=3),
  'deep_cross_attention_last_2': _pre_norm('grn', ways=3, last=2),
  'attention_residuals': _pre_norm('attention_residuals'),
  'attention_residuals_block': _pre_norm('attention_residuals', block=4),
  'attention_residuals_heads': _pre_norm('attention_residuals', heads=8),
  'attention_residuals_layer': _pre_norm(
    'attention_residuals', sources='layer'
  ),
  'attention_residuals_delta': _pre_norm('attention_residuals', kind='delta'),
  'b2t': {'model.residual': 'b2t'},
  'deepnorm': {'model.residual': 'deepnorm'},
  'surface_fusion': decoder('surface_fusion'),
  'surface_fusion_soft': decoder('surface_fusion', kind='soft'),
  'surface_fusion_learned': decoder('surface_fusion', kind='learned'),
  'value_residual': attention('value_residual', kind='learnable'),
  'value_residual_shared': attention('value_residual', kind='shared'),
  'hyper_connections': _pre_norm('hyper_connections'),
  **{
    f'hyper_connections_{kind}': _pre_norm('hyper_connections', kind=kind)
    for kind in ('static', 'identity_mix', 'manifold')
  },
  'transparent_by_feature': encoder('transparent', feature_wise=True),
}
