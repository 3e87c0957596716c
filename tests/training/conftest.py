import pytest
from programs import Program


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
  """The prepared corpus and the compilation cache of a file's runs."""
  return tmp_path_factory.mktemp('shared')


@pytest.fixture(scope='module')
def program(shared):
  return Program(shared)
