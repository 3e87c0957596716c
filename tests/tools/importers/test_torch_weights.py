"""Reading of what PyTorch saved; the pickles here are written by hand."""

import pickle
import struct
import zipfile

import numpy as np
import pytest

from fusion_jax.errors import InputError
from fusion_jax.tools.importers.torch_weights import Record, read_torch

# _rebuild_tensor_v2(storage '0', offset, shape, strides, False, OrderedDict())
_TENSOR = (
  "ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\n{kind}\n"
  "S'0'\nS'cpu'\nI6\n{view}tQI{offset}\n(I{rows}\nI2\nt(I{stride}\nI1\nt"
  'I00\nccollections\nOrderedDict\n(tRtR'
)


def _tensor(
  kind='FloatStorage', view='', offset=0, rows=2, stride=2, prefix=''
):
  values = {'kind': kind, 'view': view, 'offset': offset, 'rows': rows}
  text = _TENSOR.format(stride=stride, **values)
  return f"(d{prefix}S'weight'\n{text}s.".encode()


def _zipped(path, pickled, content=b''):
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('archive/data.pkl', pickled)
    archive.writestr('archive/data/0', content)
    archive.writestr('archive/byteorder', 'little')
  return path


_SIX = np.arange(6, dtype=np.float32).tobytes()


def test_a_tensor_is_a_view_of_its_storage(tmp_path):
  path = _zipped(tmp_path / 'a', _tensor(offset=1), _SIX)
  np.testing.assert_array_equal(read_torch(path)['weight'], [[1, 2], [3, 4]])
  path = _zipped(tmp_path / 'b', _tensor(stride=4), _SIX)
  np.testing.assert_array_equal(read_torch(path)['weight'], [[0, 1], [4, 5]])


def test_bfloat16(tmp_path):
  # The upper halves of 1.0, -2.0, 0, ... as float32.
  content = struct.pack('<6H', 0x3F80, 0xC000, 0, 0, 0, 0)
  path = _zipped(tmp_path / 'a', _tensor('BFloat16Storage'), content)
  weight = read_torch(path)['weight'].astype(np.float32)
  np.testing.assert_array_equal(weight, [[1, -2], [0, 0]])


def test_the_form_before_the_zip_archive(tmp_path):
  parts = [
    pickle.dumps(0x1950A86A20F9469CFC6C),
    pickle.dumps(1001),
    pickle.dumps({'little_endian': True}),
    _tensor(view='N'),
    pickle.dumps(['0']),
    struct.pack('<q', 6) + _SIX,
  ]
  path = tmp_path / 'a'
  path.write_bytes(b''.join(parts))
  np.testing.assert_array_equal(read_torch(path)['weight'], [[0, 1], [2, 3]])


def test_a_foreign_class_becomes_a_record(tmp_path):
  space = "S'args'\ncargparse\nNamespace\n(tR(dS'layers'\nI6\nsbs"
  path = _zipped(tmp_path / 'a', _tensor(prefix=space), _SIX)
  args = read_torch(path, frozenset({'argparse'}))['args']
  assert type(args) is Record
  assert args == {'layers': 6}


@pytest.mark.parametrize(
  ('pickled', 'asked'),
  [
    (b"cposix\nsystem\n(S'touch was_run'\ntR.", 'posix.system'),
    (b"cbuiltins\neval\n(S'1'\ntR.", 'builtins.eval'),
    (b'cargparse\nNamespace\n(tR.', 'argparse.Namespace'),
    (b'ctorch._utils\n_rebuild_parameter\n(tR.', 'torch._utils.'),
    (_tensor(offset=-1), 'a tensor of unknown form'),
    (b"(S'module'\nI0\ntQ.", 'a storage of unknown form'),
  ],
)
def test_a_pickle_with_anything_else_is_refused(
  tmp_path, monkeypatch, pickled, asked
):
  monkeypatch.chdir(tmp_path)
  for path in (_zipped(tmp_path / 'a', pickled), tmp_path / 'b'):
    if path.name == 'b':
      path.write_bytes(pickled)
    if path.name == 'a' or asked in ('posix.system', 'builtins.eval'):
      with pytest.raises(InputError, match=asked):
        read_torch(path)
  assert not (tmp_path / 'was_run').exists()


@pytest.mark.parametrize(
  'pickled', [b'', b'text', b'(lp0\nI1\na', _tensor(rows=4), _tensor(offset=5)]
)
def test_damage_is_one_line(tmp_path, pickled):
  path = _zipped(tmp_path / 'a', pickled, _SIX)
  with pytest.raises(InputError, match='not a file of PyTorch, or damaged'):
    read_torch(path)
