"""Options that save memory or compilation change no start and no result."""

import dataclasses

import jax
import numpy as np
import pytest
from cases import CASES
from tiers import extended_but

from fusion_jax.errors import InputError
from fusion_jax.fusion import SCHEMES
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.testing import FusedModel, assert_close, sample_inputs
from fusion_jax.training.warm_start import stacked

_CHANGES = {
  'scan': {'scan_layers': True},
  'remat': {'remat': True, 'remat_policy': 'dots'},
  'scan-remat': {'scan_layers': True, 'remat': True},
}


def _changed(name, change):
  """The configs of a case without and with a change; None: it is refused."""
  config = dataclasses.replace(
    CASES[name], scan_layers=False, remat=False, remat_policy='nothing'
  )
  try:
    return config, dataclasses.replace(config, **_CHANGES[change])
  except InputError:
    return None


_SCANNED = [name for name in CASES if _changed(name, 'scan')]
_TAKEN = [
  (name, change)
  for name in SCHEMES
  for change in _CHANGES
  if _changed(name, change)
]
_CORE = ('linear',)


def _starts(config):
  """Fresh parameters of two seeds."""
  model = FusedModel(config).model
  return [jax.jit(lambda s=s: initial_parameters(model, s))() for s in (0, 1)]


def _check_starts(plain, scanned):
  """Compares what depends on no seed."""
  first, second = map(stacked, _starts(plain))
  got, _ = _starts(scanned)
  jax.tree.map_with_path(
    lambda path, x, y, z: (
      np.testing.assert_array_equal(z, x, str(path))
      if (x == y).all()
      else np.testing.assert_equal(z.shape, x.shape)
    ),
    *(first, second, got),
  )


@pytest.mark.parametrize('name', extended_but(_SCANNED, _CORE))
def test_one_layer_for_all_starts_as_each_of_them(name):
  _check_starts(*_changed(name, 'scan'))


@pytest.mark.parametrize('streams', extended_but([2, 3, 8], [3]))
@pytest.mark.parametrize('kind', extended_but(['static', 'manifold'], []))
def test_streams_are_read_in_turn_by_one_layer_for_all(kind, streams):
  plain, scanned = (
    dataclasses.replace(
      config,
      **{
        name: dataclasses.replace(
          config.side(name), options={'kind': kind, 'streams': streams}
        )
        for name in ('encoder', 'decoder')
      },
    )
    for config in _changed('hyper_connections', 'scan')
  )
  _check_starts(plain, scanned)


@pytest.mark.parametrize(
  ('name', 'change'),
  extended_but(_TAKEN, [(name, 'scan-remat') for name in _CORE]),
)
def test_results_do_not_depend_on_them(name, change):
  plain, changed = _changed(name, change)
  fused, other = FusedModel(plain), FusedModel(changed)
  parameters = fused.parameters
  if changed.scan_layers:
    parameters = stacked(parameters)
  got = other.forward(*sample_inputs(), parameters=parameters)
  assert_close(got, fused.forward(*sample_inputs()))
