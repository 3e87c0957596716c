import pytest
from recorded import MARIAN, import_model


@pytest.fixture(scope='session')
def marian_run(tmp_path_factory):
  """The run directory of the recorded MarianMT model."""
  output = tmp_path_factory.mktemp('imported') / 'run'
  assert not import_model('marian', MARIAN, output)
  return output
