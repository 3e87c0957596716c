"""Values and pairs of options that make no sense are refused by name."""

import re
import tomllib
from pathlib import Path

import pytest

from fusion_jax.config.serialization import from_dict
from fusion_jax.errors import InputError

_REFUSED = tomllib.loads(Path(__file__).with_name('refused.toml').read_text())


@pytest.mark.parametrize(
  'row', _REFUSED['refused'], ids=lambda row: row['message']
)
def test_refused(row):
  with pytest.raises(InputError, match=re.escape(row['message'])) as raised:
    from_dict({'model': row['model']})
  assert '\n' not in str(raised.value)
