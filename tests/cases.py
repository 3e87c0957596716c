"""The table of fused models that the common tests run over."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from tiers import extended_but

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig, unread_options
from fusion_jax.fusion import SCHEMES
from fusion_jax.testing import TINY


def _model(**changes) -> ModelConfig:
  return dataclasses.replace(TINY, **changes)


def _both(norm: str = 'post', **options) -> ModelConfig:
  side = SideConfig(**options)
  return _model(norm=norm, encoder=side, decoder=side)


def norm_for(*schemes: str, wanted: str = 'post') -> str:
  """The wanted norm, or pre-norm where a scheme is not defined for it."""
  rules = [SCHEMES[name] for name in schemes if name in SCHEMES]
  return wanted if all(wanted in rule.norms for rule in rules) else 'pre'


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
_OPTIONS: dict[str, list[dict[str, Any]]] = {
  'linear': [{'factored': False}, {'hidden': 10}],
  'iterative': [{'activation': 'attention', 'residual': 'top'}],
  'hierarchical': [
    {'activation': 'relu', 'residual': 'none', 'hidden': 10},
    {'group_size': 3, 'feedback': False},
    {'zero_out': False},
  ],
  'average': [{'include_embedding': False, 'norm': 'plain'}],
  'feed_forward': [{'layer_embedding': False, 'hidden': 10, 'norm': 'none'}],
  'hops': [
    {'independent': 'per_layer', 'norm': 'plain', 'scorer_width': 10},
    {'independent': 'per_hop', 'hops': 2},
    {'layer_embedding': False, 'norm': 'none'},
  ],
  'dynamic_combination': [{'hidden': 10}],
  'dynamic_routing': [
    {'form': 'paper'},
    {
      'vote_projection': 'block',
      'context': 'own',
      'iterations': 2,
      'residual': 'none',
    },
    {
      'capsules': 4,
      'average': 'sum',
      'agreement': 'product',
      'stop_gradient': False,
    },
  ],
  'em_routing': [
    {'form': 'paper'},
    {'iterations': 2, 'stop_gradient': False},
    {
      'capsules': 2,
      'variance_floor': 0.01,
      'residual': 'all',
      'vote_norm': 'none',
    },
  ],
  'gtrans': [
    {'group_size': 3, 'mode': 'last', 'single_group_norm': True},
    {'group_size': 1, 'mode': 'weighted_mean'},
    {'last_group': 'floor', 'combine': 'geometric', 'temperature': 1.0},
    {'inference_groups': '1:1'},
  ],
  'transparent': [
    {'dropout': 0.0, 'feature_wise': True},
    {'dropout_place': 'weights', 'memory_norm': True},
  ],
  'surface_fusion': [
    {'kind': 'hard', 'weight': 0.5, 'combine': 'arithmetic'},
    {'kind': 'soft', 'temperature': 5.0},
    {'kind': 'hard', 'network': True},
    {'kind': 'learned', 'least': 0.0},
  ],
  'dlcl': [
    {'start': 'one'},
    {'window': 2, 'frozen': True},
    {'norms': 'none', 'start': 'top', 'dilation': 2},
    {'period': 2},
    {'first': 'learned'},
  ],
  'hyper_connections': [
    {'kind': 'static', 'streams': 2},
    {'kind': 'identity_mix'},
    {'kind': 'manifold', 'rounds': 3},
  ],
  'attention_residuals': [
    {'kind': 'delta', 'heads': 2},
    {'kind': 'delta', 'embedding': True},
    {'block': 2},
    {'sources': 'layer', 'heads': 4},
  ],
  'mudd': [
    {'ways': 1, 'norms': 'pre_post'},
    {'norms': 'pre_post', 'memory_ways': 1, 'hidden_multiple': 8},
  ],
  'grn': [
    {'kind': 'scalar', 'ways': 4},
    {'kind': 'vector', 'last': 1},
    {'ways': 3, 'last': 1},
  ],
}


def _options() -> dict[str, ModelConfig]:
  cases = {}
  for name, every in _OPTIONS.items():
    for number, values in enumerate(every):
      side = SideConfig(name, values)
      sides = {
        place: without_unread(side, place) for place in SCHEMES[name].modules
      }
      norm = norm_for(name)
      cases[f'{name}-options-{number}'] = _model(norm=norm, **sides)
  return cases


def without_unread(side: SideConfig, name: str) -> SideConfig:
  """The side with the defaults of options that it does not read."""
  for option in unread_options(side, name):
    section, _, field = option.partition('.')
    options = getattr(side, section)
    default = getattr(type(options)(), field)
    options = dataclasses.replace(options, **{field: default})
    side = dataclasses.replace(side, **{section: options})
  return side


def reading(name: str, /, **options) -> SideConfig:
  """A side with a source of attention and its options."""
  return SideConfig(attention=name, attention_options=options)


def _attention() -> dict[str, ModelConfig]:
  def both(name: str, norm: str = 'post', /, **options) -> ModelConfig:
    side = reading(name, **options)
    return _model(norm=norm, encoder=side, decoder=side)

  def decoder(name: str, /, **options) -> ModelConfig:
    return _model(decoder=reading(name, **options))

  fused = {'feature_fusion': True}
  three = reading('multi_layer', layers=3, activation='attention')
  return {
    'multi_layer-2': both('multi_layer'),
    'multi_layer-3-attention': _model(
      encoder=three, decoder=three, encoder_layers=4, decoder_layers=4
    ),
    'multi_layer-pre': both('multi_layer', 'pre'),
    'shortcut': both('shortcut'),
    'shortcut-fused': both('shortcut', **fused),
    'shortcut-non_lexical': both('shortcut', source='non_lexical'),
    'shortcut-cross': decoder('shortcut', where='cross'),
    'shortcut-both': decoder('shortcut', where='both', **fused),
    'value-learnable': both('value_residual'),
    'value-identity': dataclasses.replace(
      both('value_residual', 'pre', kind='identity'), remat=True
    ),
    'value-constant-cross': decoder(
      'value_residual', kind='constant', where='cross'
    ),
    'value-sparse-both': decoder('value_residual', kind='sparse', where='both'),
    'value-shared': both('value_residual', kind='shared'),
    'value-shared-both': _model(
      norm='pre',
      remat=True,
      encoder=reading('value_residual', kind='shared'),
      decoder=reading('value_residual', kind='shared', where='both'),
    ),
    'shortcut-author': both('shortcut', 'pre', author_compat=True),
    'shortcut-non_lexical-pre': both('shortcut', 'pre', source='non_lexical'),
    'shortcut-no_source_norm': both(
      'shortcut', 'pre', source='non_lexical', source_norm='none'
    ),
  }


def _combined() -> dict[str, ModelConfig]:
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
      norm='pre', encoder=SideConfig('mudd', {'ways': 0, 'memory_ways': 2})
    ),
    'mudd-memory-pre_post': _model(
      norm='pre',
      encoder=SideConfig(
        'mudd', {'ways': 1, 'memory_ways': 2, 'norms': 'pre_post'}
      ),
      decoder=reading('value_residual', kind='shared', where='both'),
    ),
    'scan-mudd-memory': _model(
      norm='pre',
      encoder=SideConfig('mudd', {'ways': 0, 'memory_ways': 2}),
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
      fusion='linear', start='baseline', options={'factored': False}
    ),
    'dynamic_combination-start': _both(
      fusion='dynamic_combination', start='baseline'
    ),
    'feed_forward-start': _both(
      'pre', fusion='feed_forward', start='baseline', options={'hidden': 20}
    ),
    'gtrans-start': _both(fusion='gtrans', start='baseline'),
    'hierarchical-start': _both('pre', fusion='hierarchical', start='baseline'),
    'shortcut-fused-start': _both(
      attention='shortcut',
      attention_options={'feature_fusion': True},
      start='baseline',
    ),
    'multi_layer-start': _both(attention='multi_layer', start='baseline'),
    'rezero-dlcl': _both('rezero', fusion='dlcl'),
    'post-per_layer': _both(fusion='linear', input_norm='per_layer'),
    'pre-no-input-norm': _both('pre', fusion='iterative', input_norm='none'),
    'shortcut-em_routing': _both(fusion='em_routing', attention='shortcut'),
    'multi_layer-gtrans': _both(fusion='gtrans', attention='multi_layer'),
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
      _both('pre', fusion='hyper_connections'), scan_layers=True, remat=True
    ),
    'scan-gtrans-transparent': _model(
      encoder=SideConfig(fusion='transparent'),
      decoder=SideConfig(fusion='gtrans'),
      scan_layers=True,
    ),
    'scan-surface-transparent': _model(
      encoder=SideConfig(fusion='transparent'),
      decoder=SideConfig(fusion='surface_fusion', options={'kind': 'learned'}),
      scan_layers=True,
      remat=True,
    ),
    'scan-shortcut-cross': _model(
      encoder=SideConfig(attention='shortcut'),
      decoder=reading('shortcut', where='both'),
      scan_layers=True,
    ),
    'scan-non_lexical': dataclasses.replace(
      _both(attention='shortcut', attention_options={'source': 'non_lexical'}),
      scan_layers=True,
    ),
    'scan-tree': dataclasses.replace(
      _both(fusion='hierarchical', options={'feedback': False}),
      scan_layers=True,
    ),
    'scan-b2t-hierarchical': dataclasses.replace(
      _both(fusion='hierarchical', options={'feedback': False}),
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
