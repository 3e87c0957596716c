"""The report on a compiled program, as text and as JSON."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any

from fusion_jax.files import write_whole
from fusion_jax.tools.aot.chips import GIB
from fusion_jax.tools.aot.compile import Figures
from fusion_jax.tools.aot.topology import Topology

_COMPILERS = ('jax', 'jaxlib', 'libtpu', 'jax-cuda13-pjrt', 'jax-cuda12-pjrt')


def report(topology: Topology, step: str, figures: Figures) -> str:
  """Write the figures, one per line."""
  chip, chips = topology.figures, figures.chips
  rows, source, target = figures.shape
  axes = ' x '.join(f'{axis} {size}' for axis, size in figures.mesh.items())
  most = ' at most' if step == 'decode' else ''
  lines = [
    f'{topology.name}, {step}: {chips} chips, {axes}; '
    f'{figures.parameters:,} parameters; '
    f'a batch of {rows} rows of {source} + {target} positions',
    f'memory      {figures.peak / GIB:.2f} GiB of {chip.memory / GIB:.2f} GiB '
    f'a chip, it fits; {figures.state / GIB:.2f} GiB of it between steps',
    f'operations  {figures.flops / 1e12:.3f} * 10^12{most}, products alone; '
    f'{figures.flops / chips / chip.flops * 1e3:.2f} ms per chip at its peak',
  ]
  shares = ', '.join(
    f'{part} {x / 1e9:.2f}' for part, x in figures.parts.items()
  )
  lines.append(
    f'bytes       {figures.hbm / 1e9:.2f} GB{most} between HBM and chip, '
    f'{figures.hbm / chip.bandwidth * 1e3:.2f} ms at its peak: {shares}'
  )
  for kind, total in figures.exchanges.items():
    lines.append(
      f'{kind:<18}  {total.count:,}{most}, '
      f'a chip sends {total.sent / 2**20:,.1f} MiB, '
      f'{total.overlapping:.0%} of it while it computes'
    )
  if not figures.exchanges:
    lines.append('nothing is exchanged between chips')
  lines.append(
    f'seconds     {figures.trace_seconds:.0f} to trace, '
    f'{figures.compile_seconds:.0f} to compile'
  )
  return '\n'.join(lines)


def as_json(topology: Topology, step: str, figures: Figures) -> dict[str, Any]:
  """Return the figures and what they depend on as plain values."""
  return {
    'topology': topology.name,
    'step': step,
    'available': topology.figures.memory,
    **figures.as_json(),
    'versions': _versions(),
  }


def write(path: Path, topology: Topology, step: str, figures: Figures) -> None:
  """Write `as_json` to a file, completely or not at all."""
  text = json.dumps(as_json(topology, step, figures), indent=1)
  write_whole(path, (text + '\n').encode())


def _versions() -> dict[str, str]:
  found = {}
  for name in _COMPILERS:
    try:
      found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return found
