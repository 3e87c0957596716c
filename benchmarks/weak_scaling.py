"""Base from 8 to 1,024 chips, the same batch on each: what bounds a step.

Compiled for TPU v5e, run on none. From the compiled programs and the figures
of a chip (fusion_jax/tools/aot/chips.py), for one step:

  products  operations of the whole / chips / (operations a second)
  memory    bytes that XLA says a chip reads and writes / bandwidth of its HBM;
            at most: it counts what stays on the chip between two operations
  exchange  bytes that a chip sends inside of a slice / bandwidth of its links
  network   bytes that it sends to other slices / its share of their network

The efficiency is products / (products + exchange + network). Nothing overlaps
in it, and a step that takes longer than its products loses less; but it has all
links of a chip in use, and a slice without a ring has fewer. A v5e slice has
256 chips; 1,024 are four of them.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import circumstances, log, table, write_results
from benchmarks.serving import ROOT
from fusion_jax.errors import CheckFailed
from fusion_jax.tools.aot.chips import Chip
from fusion_jax.tools.aot.topology import read_topology

_TOPOLOGIES = ('v5e:2x4', 'v5e:8x8', 'v5e:16x16', '4xv5e:16x16')
_CONFIG = 'configs/wmt14_ende.py:base'
# Slots of a batch on one side, a chip.
_SLOTS = 4_096
_NETWORK = ' between slices'
_HEADER = (
  'chips',
  'topology',
  'Gflop a chip',
  'products ms',
  'memory ms',
  'MiB sent',
  'exchange ms',
  'MiB network',
  'network ms',
  'efficiency',
)


def bounds(figures: dict[str, Any], chip: Chip) -> dict[str, float]:
  """Seconds of a step by what bounds it.

  Args:
    figures: of `aot --output`.
    chip: that they are of.

  Returns:
    'products', 'memory', 'exchange' and 'network' seconds, and the bytes
    'sent' and 'outside' of the last two.
  """
  chips = read_topology(figures['topology']).size
  exchanges = figures['exchanges'].items()
  outside = sum(x['sent'] for kind, x in exchanges if kind.endswith(_NETWORK))
  sent = sum(x['sent'] for _, x in exchanges) - outside
  return {
    'products': figures['flops'] / chips / chip.flops,
    'memory': figures['moved'] / chip.bandwidth,
    'exchange': sent / chip.link,
    'network': outside / chip.network,
    'sent': sent,
    'outside': outside,
  }


def efficiency(seconds: dict[str, float]) -> float:
  """Of `bounds`: the share of the products where nothing overlaps."""
  exchanged = seconds['exchange'] + seconds['network']
  return seconds['products'] / (seconds['products'] + exchanged)


def weak_scaling(output: Path) -> None:
  """Compiles what the results have not, and prints the table.

  Args:
    output: JSON file of the results.

  Raises:
    CheckFailed: the compiler refuses one.
  """
  results = circumstances() | {'slots_a_chip': _SLOTS, 'rows': {}}
  if output.exists():
    results = json.loads(output.read_text())
  for name in _TOPOLOGIES:
    if name not in results['rows']:
      log(f'{name}: compiling')
      results['rows'][name] = _compiled(name)
      write_results(output, results)
  print(report([results['rows'][name] for name in _TOPOLOGIES]))


def report(rows: list[dict[str, Any]]) -> str:
  """The table."""
  found = [
    (each, bounds(each, read_topology(each['topology']).figures))
    for each in rows
  ]
  cells = []
  for figures, own in found:
    chips = read_topology(figures['topology']).size
    cells.append(
      (
        chips,
        figures['topology'],
        f'{figures["flops"] / chips / 1e9:,.0f}',
        f'{own["products"] * 1e3:.2f}',
        f'{own["memory"] * 1e3:.2f}',
        f'{own["sent"] / 2**20:.1f}',
        f'{own["exchange"] * 1e3:.2f}',
        f'{own["outside"] / 2**20:.2f}',
        f'{own["network"] * 1e3:.2f}',
        f'{efficiency(own):.2f}',
      )
    )
  return table(_HEADER, cells)


def _compiled(name: str) -> dict[str, Any]:
  chips = read_topology(name).size
  with tempfile.TemporaryDirectory() as folder:
    output = Path(folder, 'figures.json')
    answer = subprocess.run(
      [
        sys.executable,
        '-m',
        'fusion_jax.tools.aot',
        f'--config={_CONFIG}',
        f'--topology={name}',
        f'--config.data.batch.tokens={_SLOTS * chips}',
        f'--config.data.batch.row_multiple={chips}',
        f'--output={output}',
      ],
      cwd=ROOT,
      stderr=subprocess.PIPE,
      stdout=subprocess.DEVNULL,
      text=True,
    )
    if answer.returncode:
      raise CheckFailed(f'{name}: {answer.stderr.splitlines()[-1]}')
    return json.loads(output.read_text())
