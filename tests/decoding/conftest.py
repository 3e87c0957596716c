import pytest
from copying import make_tokenizer


@pytest.fixture(scope='session')
def tokenizer():
  return make_tokenizer()
