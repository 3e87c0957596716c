"""Reading of what PyTorch saved, without PyTorch and without running anything.

A file of `torch.save` is a pickle, and a pickle may call any function. The
reader here knows tensors and plain values, and calls nothing else. Classes of
some modules become inert records: their state is kept, and their code never
runs. A pickle with anything else is refused.

Both forms are read: the zip archive of PyTorch 1.6 and later, and the sequence
of pickles before it.
"""

import collections
import io
import math
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from fusion_jax.errors import InputError, first_line
from fusion_jax.files import read_errors

# What a file without a zip archive begins with.
_MAGIC = 0x1950A86A20F9469CFC6C

_DTYPES = {
  'FloatStorage': np.dtype('float32'),
  'DoubleStorage': np.dtype('float64'),
  'HalfStorage': np.dtype('float16'),
  'BFloat16Storage': np.dtype(ml_dtypes.bfloat16),
  'LongStorage': np.dtype('int64'),
  'IntStorage': np.dtype('int32'),
  'ShortStorage': np.dtype('int16'),
  'CharStorage': np.dtype('int8'),
  'ByteStorage': np.dtype('uint8'),
  'BoolStorage': np.dtype('bool'),
}

_BIG_ENDIAN = 'its numbers are big-endian'
_TENSOR = 'torch._utils', '_rebuild_tensor_v2'


class _Storage(NamedTuple):
  """Numbers of one or more tensors, which are not in the pickle itself."""

  content: bytes | None
  dtype: np.dtype


class Record(dict[str, Any]):
  """Object of a foreign class: its state by name, and nothing that runs."""

  def __init__(self, *values: Any, **fields: Any):
    super().__init__()  # Without what its class would have been called with.

  def __setstate__(self, state: Any) -> None:
    if isinstance(state, Mapping):
      self.update(state)


class _Refusal(Exception):
  """A pickle that asks for more than the reader gives."""


class _Reader(pickle.Unpickler):
  """Unpickler that makes arrays, records and plain values only."""

  def __init__(
    self,
    file: Any,
    inert: Set[str] = frozenset(),
    content: Callable[[str, np.dtype], bytes | None] = lambda *_: None,
  ):
    super().__init__(file, encoding='utf-8')
    self._inert = inert
    self._content = content

  def find_class(self, module: str, name: str) -> Any:
    if (module, name) == _TENSOR:
      return _tensor
    if (module, name) == ('collections', 'OrderedDict'):
      return collections.OrderedDict
    if module in ('torch', 'torch.storage') and name in _DTYPES:
      return _DTYPES[name]
    if self._inert & {module.partition('.')[0], f'{module}.{name}'}:
      return Record
    raise _Refusal(f'{module}.{name}')

  def persistent_load(self, pid: Any) -> _Storage:
    match pid:
      case ('storage', np.dtype() as dtype, str(key), _, int(), *view):
        if not any(view):
          return _Storage(self._content(key, dtype), dtype)
    raise _Refusal('a storage of unknown form')


def _tensor(
  storage: Any, offset: Any, shape: Any, strides: Any, *_: Any
) -> np.ndarray | None:
  """Return a tensor as an array; None where the content is not known yet."""
  numbers = (offset, *shape, *strides)
  whole = all(type(x) is int and x >= 0 for x in numbers)
  if type(storage) is not _Storage or not whole or len(shape) != len(strides):
    raise _Refusal('a tensor of unknown form')
  content, dtype = storage
  if 0 in shape:
    return np.zeros(shape, dtype)
  if content is None:
    return None
  values = np.frombuffer(content, dtype, len(content) // dtype.itemsize)
  steps = zip(shape, strides, strict=True)
  last = offset + sum((size - 1) * stride for size, stride in steps)
  if last >= values.size or math.prod(shape) > values.size:
    raise ValueError('a tensor is larger than its storage')
  return np.lib.stride_tricks.as_strided(
    values[offset:],
    tuple(shape),
    tuple(stride * dtype.itemsize for stride in strides),
    writeable=False,
  )


def read_torch(path: Path, inert: Set[str] = frozenset()) -> Any:
  with read_errors(path), path.open('rb') as file:
    try:
      if zipfile.is_zipfile(file):
        return _from_zip(file, inert)
      file.seek(0)
      return _from_pickles(file, inert)
    except _Refusal as refusal:
      raise InputError(
        f'{path}: its pickle asks for {refusal}, which is no tensor; nothing '
        'of it was run. Give a file that has weights alone'
      ) from None
    except (OSError, MemoryError):
      raise
    except Exception as error:  # Damaged pickles raise many kinds.
      raise InputError(
        f'{path}: not a file of PyTorch, or damaged: {first_line(error)}'
      ) from None


def arrays_of(saved: Any, otherwise: str) -> dict[str, np.ndarray]:
  """Return the arrays by name, or raise an InputError that says `otherwise`."""
  if not isinstance(saved, dict):
    raise InputError(otherwise)
  return {n: x for n, x in saved.items() if isinstance(x, np.ndarray)}


def _from_zip(file: BinaryIO, inert: Set[str]) -> Any:
  with zipfile.ZipFile(file) as archive:
    pickled = [n for n in archive.namelist() if n.endswith('/data.pkl')]
    if len(pickled) != 1:
      raise ValueError('a zip archive without data.pkl')
    folder = pickled[0].removesuffix('data.pkl')
    order = folder + 'byteorder'
    if order in archive.namelist() and archive.read(order) != b'little':
      raise ValueError(_BIG_ENDIAN)
    stored: dict[str, bytes] = {}

    def content(key: str, dtype: np.dtype) -> bytes:
      if key not in stored:
        stored[key] = archive.read(f'{folder}data/{key}')
      return stored[key]

    saved = io.BytesIO(archive.read(pickled[0]))
    return _Reader(saved, inert, content).load()


def _from_pickles(file: BinaryIO, inert: Set[str]) -> Any:
  if _Reader(file).load() != _MAGIC:
    raise ValueError('it does not begin as one')
  _Reader(file).load()  # The version of the form.
  if not _Reader(file).load()['little_endian']:
    raise ValueError(_BIG_ENDIAN)
  # The numbers follow the pickle, which is read again when they are there.
  place, dtypes, stored = file.tell(), {}, {}

  def note(key: str, dtype: np.dtype) -> None:
    dtypes[key] = dtype

  _Reader(file, inert, note).load()
  for key in _Reader(file).load():
    (count,) = struct.unpack('<q', file.read(8))
    stored[key] = file.read(count * dtypes[key].itemsize)
  file.seek(place)
  return _Reader(file, inert, lambda key, _: stored[key]).load()
