"""The table of fused models that the common tests run over."""

import dataclasses
import tomllib
from collections.abc import Iterable
from pathlib import Path

from tiers import extended_but

from fusion_jax.config import ModelConfig
from fusion_jax.config.fusion import SideConfig, unread_options
from fusion_jax.fusion import SCHEMES
from fusion_jax.testing import TINY

_TABLE = tomllib.loads(Path(__file__).with_suffix('.toml').read_text())


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
    cases[name] = dataclasses.replace(TINY, norm=norm, **sides)
  return cases


def _options() -> dict[str, ModelConfig]:
  cases = {}
  for name, every in _TABLE['options'].items():
    for number, values in enumerate(every):
      side = SideConfig(name, values)
      sides = {
        place: without_unread(side, place) for place in SCHEMES[name].modules
      }
      norm = norm_for(name)
      cases[f'{name}-options-{number}'] = dataclasses.replace(
        TINY, norm=norm, **sides
      )
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


def _listed(section: str) -> dict[str, ModelConfig]:
  """The models of a section of the table."""
  cases = {}
  for name, row in _TABLE[section].items():
    fields = dict(row)
    both = fields.pop('both', {})
    for side in ('encoder', 'decoder'):
      fields[side] = SideConfig(**(both | fields.get(side, {})))
    cases[name] = dataclasses.replace(TINY, **fields)
  return cases


_SCHEMES = _plain_schemes()
_ATTENTION = _listed('attention')
CASES = _SCHEMES | _options() | _ATTENTION | _listed('combined')
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
