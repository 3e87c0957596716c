"""The table of fused models that the common tests run over."""

import dataclasses
from collections.abc import Iterable

from tiers import extended_but

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import (
  RULES,
  AggOptions,
  AttentionResidualOptions,
  DenseOptions,
  DlclOptions,
  DynamicOptions,
  GrnOptions,
  GtransOptions,
  HyperOptions,
  LinearOptions,
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
from fusion_jax.config.fusion_checks import unread_options
from fusion_jax.fusion import SCHEMES
from fusion_jax.testing import TINY


def _model(**changes) -> ModelConfig:
  return dataclasses.replace(TINY, **changes)


def _both(norm: str = 'post', **options) -> ModelConfig:
  side = SideConfig(**options)
  return _model(norm=norm, encoder=side, decoder=side)


def norm_for(*schemes: str, wanted: str = 'post') -> str:
  """The wanted norm, or pre-norm where a scheme is not defined for it."""
  rules = [RULES[name] for name in schemes if name in RULES]
  return wanted if all(wanted in each.norms for each in rules) else 'pre'


def _plain_schemes() -> dict[str, ModelConfig]:
  """Every scheme, on both sides if it has them; pre- and post-norm in turn."""
  cases = {}
  for number, (name, scheme) in enumerate(SCHEMES.items()):
    sides = dict.fromkeys(scheme.modules, SideConfig(fusion=name))
    norm = norm_for(name, wanted=('pre', 'post')[number % 2])
    cases[name] = _model(norm=norm, **sides)
  return cases


# Every option of every scheme away from its default at least once. A side
# takes what it reads of them.
_OPTIONS = {
  'dense': [DenseOptions(include_embedding=True, post_sum_norm=True)],
  'linear': [
    LinearOptions(factored=False, output_norm=True),
    LinearOptions(hidden=10, bias=False),
  ],
  'iterative': [AggOptions(activation='attention', residual='top')],
  'hierarchical': [
    AggOptions(activation='relu', residual='none', hidden=10),
    AggOptions(group_size=3, feedback=False),
    AggOptions(zero_out=False),
  ],
  'average': [MlrfOptions(include_embedding=False, norm='plain')],
  'feed_forward': [MlrfOptions(layer_embedding=False, hidden=10, norm='none')],
  'hops': [
    MlrfOptions(independent='per_layer', norm='plain', scorer_width=10),
    MlrfOptions(independent='per_hop', scorer_activation='relu', hops=2),
    MlrfOptions(feature_wise=True, layer_embedding=False, norm='none'),
  ],
  'dynamic_combination': [
    DynamicOptions(hidden=10, normalize='softmax', output_norm=True)
  ],
  'dynamic_routing': [
    RoutingOptions(form='paper'),
    RoutingOptions(
      vote_projection='block',
      context='own',
      iterations=2,
      route_axis='input',
      residual='none',
    ),
    RoutingOptions(
      vote_hidden=10,
      vote_activation='relu',
      average='gain',
      agreement='product',
      agreement_scale=2.0,
      route_gain=1.0,
      stop_gradient=False,
    ),
    RoutingOptions(capsules=4, agreement='scaled'),
  ],
  'em_routing': [
    RoutingOptions(form='paper'),
    RoutingOptions(activation='per_output', emit='mean', iterations=2),
    RoutingOptions(
      stop_gradient=False,
      activation='none',
      betas='zero',
      temperature='hinton',
      cost_norm=True,
    ),
    RoutingOptions(
      capsules=2,
      vote_activation='none',
      variance_floor=1e-2,
      log_density_scale=0.5,
      output_norm=False,
      residual='all',
      vote_norm='none',
      floor='relative',
    ),
  ],
  'gtrans': [
    GtransOptions(group_size=3, mode='last', single_group_norm=True),
    GtransOptions(group_size=1, mode='weighted_mean', group_norm=True),
    GtransOptions(last_group='floor', combine='geometric', temperature=1.0),
    GtransOptions(inference_groups='1:1'),
  ],
  'transparent': [
    TransparentOptions(dropout=0.0, weights='uniform'),
    TransparentOptions(feature_wise=True),
    TransparentOptions(dropout_place='weights', memory_norm=True),
  ],
  'surface_fusion': [
    SurfaceOptions('hard', weight=0.5, combine='arithmetic'),
    SurfaceOptions('soft', temperature=5.0),
    SurfaceOptions('hard', network=True),
    SurfaceOptions('learned', least=0.0, positions=True),
  ],
  'dlcl': [
    DlclOptions(start='one', normalize='softmax', weights='vector'),
    DlclOptions(window=2, frozen=True),
    DlclOptions(norms='none', start='top', dilation=2, weights='vector'),
    DlclOptions(period=2),
    DlclOptions(first='learned'),
  ],
  'hyper_connections': [
    HyperOptions(kind='static', streams=2),
    HyperOptions(kind='identity_mix', collapse='learned'),
    HyperOptions(kind='manifold', rounds=3),
  ],
  'attention_residuals': [
    AttentionResidualOptions(kind='delta', heads=2),
    AttentionResidualOptions(kind='delta', embedding=True),
    AttentionResidualOptions(block=2),
    AttentionResidualOptions(sources='layer', heads=4),
  ],
  'mudd': [
    MuddOptions(ways=1, norms='pre_post'),
    MuddOptions(norms='pre_post', hidden_multiple=8),
    MuddOptions(memory_ways=1),
  ],
  'grn': [
    GrnOptions('scalar', ways=4),
    GrnOptions('vector', last=1),
    GrnOptions(ways=3, last=1),
  ],
}


def _options() -> dict[str, ModelConfig]:
  cases = {}
  for name, every in _OPTIONS.items():
    scheme = SCHEMES[name]
    for number, value in enumerate(every):
      side = SideConfig(fusion=name, **{scheme.options: value})
      sides = {each: without_unread(side, each) for each in scheme.modules}
      norm = norm_for(name)
      cases[f'{name}-options-{number}'] = _model(norm=norm, **sides)
  return cases


def without_unread(side: SideConfig, name: str) -> SideConfig:
  """The side with the defaults of options that it does not read."""
  plain = SideConfig()
  for option in unread_options(side, name):
    section, _, field = option.partition('.')
    default = getattr(getattr(plain, section), field)
    options = dataclasses.replace(getattr(side, section), **{field: default})
    side = dataclasses.replace(side, **{section: options})
  return side


def _attention() -> dict[str, ModelConfig]:
  lexical = ShortcutOptions(source='lexical')
  fused = dataclasses.replace(lexical, feature_fusion=True)
  return {
    'multi_layer-2': _both(multi_layer=MultiLayerOptions(layers=2)),
    'multi_layer-2-partial': _both(
      multi_layer=MultiLayerOptions(layers=3, partial=True),
      agg=AggOptions(activation='attention'),
    ),
    'multi_layer-pre': _both('pre', multi_layer=MultiLayerOptions(layers=2)),
    'shortcut': _both(shortcut=lexical),
    'shortcut-fused': _both(shortcut=fused),
    'shortcut-non_lexical': _both(
      shortcut=ShortcutOptions(source='non_lexical')
    ),
    'shortcut-cross': _model(
      decoder=SideConfig(shortcut=dataclasses.replace(lexical, where='cross'))
    ),
    'shortcut-both': _model(
      decoder=SideConfig(shortcut=dataclasses.replace(fused, where='both'))
    ),
    'value-learnable': _both(value_residual=ValueResidualOptions('learnable')),
    'value-identity': dataclasses.replace(
      _both('pre', value_residual=ValueResidualOptions('identity')), remat=True
    ),
    'value-constant-cross': _model(
      decoder=SideConfig(
        value_residual=ValueResidualOptions('constant', 'cross')
      )
    ),
    'value-sparse-both': _model(
      decoder=SideConfig(value_residual=ValueResidualOptions('sparse', 'both'))
    ),
    'value-shared': _both(value_residual=ValueResidualOptions('shared')),
    'value-shared-both': dataclasses.replace(
      _both('pre'),
      remat=True,
      encoder=SideConfig(value_residual=ValueResidualOptions('shared')),
      decoder=SideConfig(value_residual=ValueResidualOptions('shared', 'both')),
    ),
    'shortcut-author': _both(
      'pre', shortcut=dataclasses.replace(lexical, author_compat=True)
    ),
    'shortcut-non_lexical-pre': _both(
      'pre', shortcut=ShortcutOptions(source='non_lexical')
    ),
    'shortcut-source_norm': _both(
      shortcut=dataclasses.replace(fused, source_norm='plain')
    ),
    'shortcut-no_source_norm': _both(
      'pre',
      shortcut=ShortcutOptions(source='non_lexical', source_norm='none'),
    ),
  }


def _combined() -> dict[str, ModelConfig]:
  lexical = ShortcutOptions(source='lexical')
  return {
    'none-post': _model(),
    'none-pre': _model(norm='pre'),
    'learned': _model(norm='pre', positions='learned'),
    'rezero': _model(norm='rezero'),
    'b2t': _model(residual='b2t'),
    'deepnorm-dlcl': dataclasses.replace(
      _both(fusion='dlcl'), residual='deepnorm'
    ),
    'mudd-memory': _model(
      norm='pre',
      encoder=SideConfig('mudd', mudd=MuddOptions(0, memory_ways=2)),
    ),
    'mudd-memory-pre_post': _model(
      norm='pre',
      encoder=SideConfig('mudd', mudd=MuddOptions(1, 2, norms='pre_post')),
      decoder=SideConfig(value_residual=ValueResidualOptions('shared', 'both')),
    ),
    'scan-mudd-memory': _model(
      norm='pre',
      encoder=SideConfig('mudd', mudd=MuddOptions(0, memory_ways=2)),
      scan_layers=True,
      remat=True,
    ),
    # Gains drawn near 0 hide the layers below.
    'skip_gains': dataclasses.replace(
      _both('pre', skip_gains=True), decoder_layers=1
    ),
    'skip_gains-post': _model(encoder=SideConfig(skip_gains=True)),
    'skip_gains-mudd': dataclasses.replace(
      _both('pre', fusion='mudd', skip_gains=True), remat=True
    ),
    'scan-skip_gains': dataclasses.replace(
      _both('rezero', skip_gains=True), scan_layers=True, remat=True
    ),
    'linear-start': _both(fusion='linear', start='baseline'),
    'plain-linear-start': _both(
      fusion='linear', start='baseline', linear=LinearOptions(factored=False)
    ),
    'dynamic_combination-start': _both(
      fusion='dynamic_combination', start='baseline'
    ),
    'feed_forward-start': _both(
      'pre',
      fusion='feed_forward',
      start='baseline',
      mlrf=MlrfOptions(hidden=20),
    ),
    'gtrans-start': _both(fusion='gtrans', start='baseline'),
    'hierarchical-start': _both('pre', fusion='hierarchical', start='baseline'),
    'shortcut-fused-start': _both(
      shortcut=ShortcutOptions(source='lexical', feature_fusion=True),
      start='baseline',
    ),
    'multi_layer-start': _both(
      multi_layer=MultiLayerOptions(layers=2), start='baseline'
    ),
    'rezero-dlcl': _both('rezero', fusion='dlcl'),
    'post-per_layer': _both(fusion='linear', input_norm='per_layer'),
    'pre-no-input-norm': _both('pre', fusion='iterative', input_norm='none'),
    'shortcut-em_routing': _both(fusion='em_routing', shortcut=lexical),
    'multi_layer-gtrans': _both(
      fusion='gtrans', multi_layer=MultiLayerOptions(layers=2)
    ),
    'feed_forward-hops': _model(
      encoder=SideConfig(fusion='feed_forward'),
      decoder=SideConfig(fusion='hops'),
    ),
    'transparent-hierarchical': _model(
      encoder=SideConfig(fusion='transparent'),
      decoder=SideConfig(fusion='hierarchical'),
    ),
    'scan-linear': dataclasses.replace(
      _both(fusion='linear'), scan_layers=True, remat=True
    ),
    'scan-hyper': dataclasses.replace(
      _both(
        'pre',
        fusion='hyper_connections',
        hyper=HyperOptions(collapse='learned'),
      ),
      scan_layers=True,
      remat=True,
    ),
    'scan-gtrans-transparent': _model(
      encoder=SideConfig(fusion='transparent'),
      decoder=SideConfig(fusion='gtrans'),
      scan_layers=True,
    ),
    'scan-surface-transparent': _model(
      encoder=SideConfig(fusion='transparent'),
      decoder=SideConfig(
        fusion='surface_fusion', surface=SurfaceOptions('learned')
      ),
      scan_layers=True,
      remat=True,
    ),
    'scan-shortcut-cross': _model(
      encoder=SideConfig(shortcut=lexical),
      decoder=SideConfig(shortcut=dataclasses.replace(lexical, where='both')),
      scan_layers=True,
    ),
    'scan-non_lexical': dataclasses.replace(
      _both(shortcut=ShortcutOptions(source='non_lexical')), scan_layers=True
    ),
    'scan-tree': dataclasses.replace(
      _both(fusion='hierarchical', agg=AggOptions(feedback=False)),
      scan_layers=True,
    ),
    'scan-b2t-hierarchical': dataclasses.replace(
      _both(fusion='hierarchical', agg=AggOptions(feedback=False)),
      residual='b2t',
      scan_layers=True,
      remat=True,
    ),
    'scan-deepnorm': _model(residual='deepnorm', scan_layers=True),
    'scan-rezero': _model(norm='rezero', scan_layers=True),
    'remat-hierarchical': dataclasses.replace(
      _both(fusion='hierarchical'), remat=True
    ),
    'different-depths': _model(
      encoder=SideConfig(fusion='feed_forward'),
      decoder=SideConfig(fusion='hops'),
      decoder_layers=2,
    ),
    'one-layer': dataclasses.replace(
      _both(fusion='hierarchical'), encoder_layers=1, decoder_layers=1
    ),
  }


_SCHEMES = _plain_schemes()
_ATTENTION = _attention()
CASES = _SCHEMES | _options() | _ATTENTION | _combined()
ATTENTION = tuple(_ATTENTION)
_CORE = {
  *_SCHEMES,
  'scan-linear',
  *('multi_layer-2', 'shortcut-both', 'shortcut-non_lexical-pre'),
  *('none-post', 'learned'),
}


def parameters(names: Iterable[str] = CASES, core: Iterable[str] = _CORE):
  """The cases as parameters of a test; only the core is in the short run."""
  return extended_but(names, core)
