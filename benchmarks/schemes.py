"""The fusion schemes that are compared, and the speeds that papers printed.

A row of `fusion_jax.config.presets` says what a scheme changes in a config.
What belongs to a paper's recipe and not to the scheme is left out here, so that
all schemes have the same training.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fusion_jax.config.presets import (
  DOU_2018,
  DOU_2019,
  EMELIN_2019,
  SINCE_2020,
  WANG_2018,
  YANG_2022,
  Row,
  attention,
  both_sides,
  decoder,
)
from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES

BASELINE = 'none'
# The paper's 1.0 suits its post-norm models. With pre-norm, layers become
# orthogonal by growing until they drown the stream: 0.2 nats behind.
_PRE_NORM_DIVERSITY: Row = {'training.diversity': 0.1}

# Of the schemes that no paper tried on this task.
_LATER = (
  'denseformer',
  'skip_gains',
  'mudd_one_way',
  'mudd',
  'mudd_memory',
  'grn_v1',
  'grn_v2',
  'grn_v3',
  'deep_cross_attention',
  'hyper_connections_static',
  'hyper_connections',
  'hyper_connections_identity_mix',
  'hyper_connections_manifold',
  'attention_residuals',
  'attention_residuals_heads',
  'attention_residuals_layer',
  'attention_residuals_delta',
  'surface_fusion',
  'surface_fusion_soft',
  'surface_fusion_learned',
  'value_residual',
  'value_residual_shared',
  'transparent_by_feature',
)
# Schemes that cannot start as a plain model with norms, whatever their weights:
# one is a norm of its own, another has no values above layer 1. Hops with an
# opening are there what `decoder_hops` is, which has one from a plain model.
ONLY_FROM_SCRATCH = frozenset(
  {'rezero', 'value_residual_shared', 'decoder_hops_opening'}
)


class Scheme(NamedTuple):
  """What a scheme changes in the baseline's config.

  `train` and `decode` are its speeds relative to its paper's baseline, where
  they are printed.
  """

  row: Row
  train: float | None = None
  decode: float | None = None


def schemes(layers: int) -> Mapping[str, Scheme]:
  """Return the baseline, then all schemes, for stacks of that many layers."""
  return {
    BASELINE: Scheme({}, 1.0, 1.0),
    'dense': Scheme(DOU_2018['dense'], 0.93, 0.96),
    'linear': Scheme(DOU_2018['linear'], 0.87, 0.95),
    'iterative': Scheme(DOU_2018['iterative'], 0.73, 0.92),
    'hierarchical': Scheme(DOU_2018['hierarchical'], 0.80, 0.94),
    'hierarchical_diversity': Scheme(
      DOU_2018['hierarchical_diversity'] | _PRE_NORM_DIVERSITY, 0.77, 0.94
    ),
    **_multi_layer(layers),
    'average': Scheme(both_sides('average')),
    'feed_forward': Scheme(WANG_2018['mlrf_both_fnn']),
    'hops': Scheme(WANG_2018['mlrf_both_sa4']),
    'feed_forward_hops': Scheme(WANG_2018['mlrf_fnn_sa']),
    'encoder_feed_forward': Scheme(WANG_2018['mlrf_encoder_fnn']),
    'decoder_hops': Scheme(WANG_2018['mlrf_decoder_sa4_per_layer']),
    'decoder_hops_opening': Scheme(
      decoder('hops', hops=4, independent='per_layer')
      | {'model.decoder.start': 'baseline'}
    ),
    'dynamic_combination': Scheme(DOU_2019['dynamic_combination'], 0.84, 0.91),
    'dynamic_routing': Scheme(DOU_2019['dynamic_routing'], 0.77, 0.87),
    'dynamic_routing_paper': Scheme(
      both_sides('dynamic_routing', form='paper'), 0.77, 0.87
    ),
    'em_routing': Scheme(DOU_2019['em_routing'], 0.61, 0.80),
    'em_routing_paper': Scheme(
      both_sides('em_routing', form='paper'), 0.61, 0.80
    ),
    'lexical': Scheme(attention('shortcut'), 0.89),
    'feature_fusion': Scheme(_emelin('feature_fusion'), 0.79),
    'non_lexical': Scheme(_emelin('feature_fusion_non_lexical')),
    'cross': Scheme(_emelin('feature_fusion_cross')),
    'gtrans': Scheme(YANG_2022['gtrans'], decode=0.97),
    'gtrans_no_encoder': Scheme(YANG_2022['gtrans_no_encoder']),
    'gtrans_no_decoder': Scheme(YANG_2022['gtrans_no_decoder']),
    'transparent': Scheme(YANG_2022['transparent']),
    'dlcl': Scheme(both_sides('dlcl')),
    'rezero': Scheme(YANG_2022['rezero']),
    **{name: Scheme(_fusion(SINCE_2020[name])) for name in _LATER},
  }


def norms_of(row: Row) -> tuple[str, ...]:
  """The norms, of pre and post, for which a row is defined."""
  sides = [value for value in row.values() if isinstance(value, dict)]
  names = [side.get('fusion', 'none') for side in sides]
  schemes = [SCHEMES[name] for name in names if name in SCHEMES]
  return tuple(
    norm
    for norm in ('pre', 'post')
    if all(norm in scheme.norms for scheme in schemes)
  )


def _fusion(row: Row) -> Row:
  """Return a row without its norm, which is that of the comparison."""
  return {name: row[name] for name in row if name != 'model.norm'}


def chosen(table: Mapping[str, Scheme], names: str) -> dict[str, Scheme]:
  """The schemes of a flag, names with commas between; all where it is empty."""
  wanted = names.split(',') if names else list(table)
  unknown = [name for name in wanted if name not in table]
  if unknown:
    raise InputError(
      f'--schemes: no scheme {unknown[0]!r}; there are {", ".join(table)}'
    )
  return {name: table[name] for name in wanted}


def _multi_layer(layers: int) -> dict[str, Scheme]:
  """Multi-layer attention, where a layer has enough layers below it."""
  speeds = {2: (0.65, 0.79), 3: (0.62, 0.75)}
  return {
    f'multi_layer_{read}': Scheme(attention('multi_layer', layers=read), *speed)
    for read, speed in speeds.items()
    if read < layers
  }


def _emelin(name: str) -> Row:
  """The model of a row, without its warm-up."""
  row = EMELIN_2019[name]
  return {field: row[field] for field in row if field.startswith('model.')}
