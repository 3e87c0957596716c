import jax
import pytest


@pytest.fixture
def float64():
  """Arrays of 64 bits, for finite differences."""
  with jax.enable_x64(True):
    yield
