"""The fusion schemes and attention sources that a config can name.

A row of a table says where the scheme is written down; its module is imported
when a config first names it, so that flags are read without Flax.
"""

import pkgutil
from typing import Any

from fusion_jax.errors import InputError

_SCHEMES = {
  'dense': 'dlcl:DENSE',
  'linear': 'linear:LINEAR',
  'iterative': 'tree:ITERATIVE',
  'hierarchical': 'tree:HIERARCHICAL',
  'average': 'average:SCHEME',
  'feed_forward': 'feed_forward:SCHEME',
  'hops': 'hops:SCHEME',
  'dynamic_combination': 'linear:DYNAMIC_COMBINATION',
  'dynamic_routing': 'capsules:DYNAMIC_ROUTING',
  'em_routing': 'capsules:EM_ROUTING',
  'gtrans': 'gtrans:SCHEME',
  'transparent': 'transparent:SCHEME',
  'dlcl': 'dlcl:DLCL',
  'mudd': 'mudd:SCHEME',
  'grn': 'grn:SCHEME',
  'hyper_connections': 'hyper_connections:SCHEME',
  'attention_residuals': 'attention_residuals:SCHEME',
  'surface_fusion': 'surface:SCHEME',
}
_SOURCES = {
  'multi_layer': 'multi_layer:SOURCE',
  'shortcut': 'shortcuts:SOURCE',
  'value_residual': 'value_residual:SOURCE',
}
_registered: dict[str, Any] = {}


def scheme_names() -> tuple[str, ...]:
  """Return the names of all fusion schemes, those of the user last."""
  return (*_SCHEMES, *_registered)


def source_names() -> tuple[str, ...]:
  """Return the names of all attention sources."""
  return tuple(_SOURCES)


def fusion_scheme(name: str) -> Any:
  """Return the `Scheme` of a name; None for 'none'."""
  if name in _registered:
    return _registered[name]
  return _loaded(_SCHEMES, name)


def attention_source(name: str) -> Any:
  """Return the `AttentionSource` of a name; None for 'none'."""
  return _loaded(_SOURCES, name)


def _loaded(table: dict[str, str], name: str) -> Any:
  if name == 'none':
    return None
  return pkgutil.resolve_name(f'fusion_jax.fusion.{table[name]}')


def add_scheme(name: str, scheme: Any) -> None:
  """Add a scheme from outside the package to those that configs may name."""
  if name == 'none' or name in scheme_names():
    raise InputError(f'fusion={name!r}: there is such a scheme already')
  _registered[name] = scheme
