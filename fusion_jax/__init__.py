"""Layer fusion for neural machine translation, in JAX.

The names in `__all__` are the public interface. They are imported when they are
first used, so that programs can read their flags before JAX starts.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from fusion_jax.api import States, TranslationModel, load, train
  from fusion_jax.config import (
    Direction,
    ExperimentConfig,
    ModelConfig,
    SideConfig,
  )
  from fusion_jax.config.flags import load_config
  from fusion_jax.config.presets import changed
  from fusion_jax.decoding.score import Scored
  from fusion_jax.decoding.translate import Translation
  from fusion_jax.errors import InputError
  from fusion_jax.fusion import register
  from fusion_jax.fusion.routing import dynamic_routing, em_routing, squash
  from fusion_jax.fusion.scheme import Scheme
  from fusion_jax.models.transformer import Transformer
  from fusion_jax.studies import study

__version__ = '0.1.0'

_NAMES = {
  'api': ('States', 'TranslationModel', 'load', 'train'),
  'config': ('Direction', 'ExperimentConfig', 'ModelConfig', 'SideConfig'),
  'config.flags': ('load_config',),
  'config.presets': ('changed',),
  'decoding.score': ('Scored',),
  'decoding.translate': ('Translation',),
  'errors': ('InputError',),
  'fusion': ('register',),
  'fusion.routing': ('dynamic_routing', 'em_routing', 'squash'),
  'fusion.scheme': ('Scheme',),
  'models.transformer': ('Transformer',),
  'studies': ('study',),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

# Type checkers read this list.
__all__ = [
  'Direction',
  'ExperimentConfig',
  'InputError',
  'ModelConfig',
  'Scheme',
  'Scored',
  'SideConfig',
  'States',
  'Transformer',
  'Translation',
  'TranslationModel',
  'changed',
  'dynamic_routing',
  'em_routing',
  'load',
  'load_config',
  'register',
  'squash',
  'study',
  'train',
]


def __getattr__(name: str) -> Any:
  if name not in _MODULES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  value = getattr(importlib.import_module(f'{__name__}.{_MODULES[name]}'), name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
