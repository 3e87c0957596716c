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
from fusion_jax.config.fusion import (
  AggOptions,
  AttentionResidualOptions,
  DlclOptions,
  GrnOptions,
  HyperOptions,
  MlrfOptions,
  MuddOptions,
  MultiLayerOptions,
  RoutingOptions,
  ShortcutOptions,
  SideConfig,
  SurfaceOptions,
  TransparentOptions,
  ValueResidualOptions,
)
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
  parts: dict[str, Row] = {}
  for name, value in row.items():
    field, _, rest = name.partition('.')
    parts.setdefault(field, {})[rest] = value
  fields = {
    field: part[''] if '' in part else changed(getattr(config, field), part)
    for field, part in parts.items()
  }
  return dataclasses.replace(whole, **fields)


def encoder(fusion: str = 'none', **options: Any) -> Row:
  """Return a row with the encoder's `SideConfig`, given its fields."""
  return {'model.encoder': SideConfig(fusion, **options)}


def decoder(fusion: str = 'none', **options: Any) -> Row:
  """Return a row with the decoder's `SideConfig`, given its fields."""
  return {'model.decoder': SideConfig(fusion, **options)}


def both_sides(fusion: str = 'none', **options: Any) -> Row:
  """Return a row with one `SideConfig` for both sides, given its fields."""
  return encoder(fusion, **options) | decoder(fusion, **options)


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


def _agg(scheme: str, **options: Any) -> Row:
  return both_sides(scheme, agg=AggOptions(**options))


def _with_diversity(rows: Mapping[str, Row]) -> dict[str, Row]:
  return {f'{name}_diversity': row | _DIVERSITY for name, row in rows.items()}


def _ablations(scheme: str) -> dict[str, Row]:
  return _with_diversity(
    {
      f'{scheme}_encoder': encoder(scheme),
      f'{scheme}_decoder': decoder(scheme),
      f'{scheme}_residual_none': _agg(scheme, residual='none'),
      f'{scheme}_residual_top': _agg(scheme, residual='top'),
      f'{scheme}_relu': _agg(scheme, activation='relu'),
      f'{scheme}_attention': _agg(scheme, activation='attention'),
    }
  )


_AGGREGATED = {
  'iterative': both_sides('iterative'),
  'hierarchical': both_sides('hierarchical'),
  'multi_layer_2': both_sides(multi_layer=MultiLayerOptions(layers=2)),
}

DOU_2018: Mapping[str, Row] = {
  'base': {},
  'dense': both_sides('dense'),
  'linear': both_sides('linear'),
  **_AGGREGATED,
  'multi_layer_3': both_sides(multi_layer=MultiLayerOptions(layers=3)),
  **_with_diversity(_AGGREGATED),
  **_ablations('hierarchical'),
  **_ablations('iterative'),
}

# Each capsule reads its own layer instead of all layers.
_OWN = RoutingOptions(vote_projection='block', context='own')

DOU_2019: Mapping[str, Row] = {
  'dynamic_combination': both_sides('dynamic_combination'),
  'dynamic_routing': both_sides('dynamic_routing'),
  'em_routing': both_sides('em_routing'),
  'em_routing_encoder': encoder('em_routing'),
  'em_routing_decoder': decoder('em_routing'),
  'em_routing_own_layer': both_sides('em_routing', routing=_OWN),
}


def _hops(hops: int, **options: Any) -> dict[str, Any]:
  return {'fusion': 'hops', 'mlrf': MlrfOptions(hops=hops, **options)}


def _without(name: str, **options: Any) -> dict[str, Row]:
  mlrf = MlrfOptions(**options)
  fnn = encoder('feed_forward', mlrf=mlrf)
  sa = decoder('hops', mlrf=mlrf)
  return {
    f'mlrf_encoder_fnn_no_{name}': fnn,
    f'mlrf_decoder_sa4_no_{name}': sa,
    f'mlrf_fnn_sa_no_{name}': fnn | sa,
  }


WANG_2018: Mapping[str, Row] = {
  'mlrf_base': {},
  'mlrf_base_4_layers': depth(4, 4),
  'mlrf_base_6_layers': depth(6, 6),
  'mlrf_encoder_average': encoder('average'),
  'mlrf_encoder_fnn': encoder('feed_forward'),
  'mlrf_encoder_sa4': encoder(**_hops(4)),
  'mlrf_encoder_sa6': encoder(**_hops(6)),
  'mlrf_decoder_average': decoder('average'),
  'mlrf_decoder_fnn': decoder('feed_forward'),
  'mlrf_decoder_sa4': decoder(**_hops(4)),
  # The best of Table 3, whose models have 6+6 layers.
  'mlrf_decoder_sa4_per_layer': decoder(**_hops(4, independent='per_layer')),
  'mlrf_decoder_sa6': decoder(**_hops(6)),
  # This form has the size that Table 2 prints for the row above.
  'mlrf_decoder_sa6_per_hop': decoder(**_hops(6, independent='per_hop')),
  'mlrf_both_fnn': both_sides('feed_forward'),
  'mlrf_both_sa4': both_sides(**_hops(4)),
  'mlrf_fnn_sa': encoder('feed_forward') | decoder(**_hops(4)),
  **_without('layer_embedding', layer_embedding=False),
  **_without('word_embedding', include_embedding=False),
}


_FUSED = ShortcutOptions(source='lexical', feature_fusion=True)
_CROSS = dataclasses.replace(_FUSED, where='cross')
_BOTH = dataclasses.replace(_FUSED, where='both')
_NON_LEXICAL = dataclasses.replace(_FUSED, source='non_lexical')
_FEATURE_FUSION = {
  'feature_fusion': both_sides(shortcut=_FUSED),
  'feature_fusion_cross': decoder(shortcut=_CROSS),
  'feature_fusion_both': encoder(shortcut=_FUSED) | decoder(shortcut=_BOTH),
  'feature_fusion_non_lexical': both_sides(shortcut=_NON_LEXICAL),
  'feature_fusion_encoder': encoder(shortcut=_FUSED),
  'feature_fusion_decoder': decoder(shortcut=_FUSED),
}

EMELIN_2019: Mapping[str, Row] = {
  'emelin_base': {},
  'lexical_shortcuts': {'optimizer.warmup_steps': 6_000}
  | both_sides(shortcut=ShortcutOptions(source='lexical')),
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

# Pre-norm, as published; the sums then start as the plain model.
_AVERAGES = DlclOptions(norms='none', start='top')


def _hyper(options: HyperOptions) -> Row:
  fused = both_sides('hyper_connections', hyper=options)
  return {'model.norm': 'pre'} | fused


def _grn(*options: Any) -> Row:
  fused = both_sides('grn', grn=GrnOptions(*options))
  return {'model.norm': 'pre'} | fused


def _attention_residuals(**options: Any) -> Row:
  chosen = AttentionResidualOptions(**options)
  fused = both_sides('attention_residuals', attention_residual=chosen)
  return {'model.norm': 'pre'} | fused


def _surface(**options: Any) -> Row:
  return decoder('surface_fusion', surface=SurfaceOptions(**options))


SINCE_2020: Mapping[str, Row] = {
  'denseformer': {'model.norm': 'pre'} | both_sides('dlcl', dlcl=_AVERAGES),
  'denseformer_output': {'model.norm': 'pre'}
  | both_sides('dlcl', dlcl=dataclasses.replace(_AVERAGES, period=6)),
  'skip_gains': {'model.norm': 'pre'} | both_sides(skip_gains=True),
  'mudd': {'model.norm': 'pre'} | both_sides('mudd'),
  'mudd_memory': {'model.norm': 'pre'}
  | encoder('mudd', mudd=MuddOptions(memory_ways=2))
  | decoder('mudd'),
  'mudd_one_way': {'model.norm': 'pre'}
  | both_sides('mudd', mudd=MuddOptions(ways=1)),
  'grn_v1': _grn('scalar'),
  'grn_v2': _grn('vector'),
  'grn_v3': _grn('dynamic'),
  'deep_cross_attention': _grn('dynamic', 3),
  'deep_cross_attention_last_2': _grn('dynamic', 3, 2),
  'attention_residuals': _attention_residuals(),
  'attention_residuals_block': _attention_residuals(block=4),
  'attention_residuals_heads': _attention_residuals(heads=8),
  'attention_residuals_layer': _attention_residuals(sources='layer'),
  'attention_residuals_delta': _attention_residuals(kind='delta'),
  'b2t': {'model.residual': 'b2t'},
  'deepnorm': {'model.residual': 'deepnorm'},
  'surface_fusion': _surface(),
  'surface_fusion_soft': _surface(kind='soft'),
  'surface_fusion_learned': _surface(kind='learned'),
  'value_residual': both_sides(
    value_residual=ValueResidualOptions('learnable')
  ),
  'value_residual_shared': both_sides(
    value_residual=ValueResidualOptions('shared')
  ),
  'hyper_connections_static': _hyper(HyperOptions('static')),
  'hyper_connections': _hyper(HyperOptions('dynamic')),
  'hyper_connections_identity_mix': _hyper(HyperOptions('identity_mix')),
  'hyper_connections_manifold': _hyper(HyperOptions('manifold')),
  'transparent_by_feature': encoder(
    'transparent', transparent=TransparentOptions(feature_wise=True)
  ),
}
