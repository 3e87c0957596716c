"""Training and decoding of large configs, compiled for TPU pods without one.

    python -m benchmarks.pods [--topologies=v5e:2x4,v5e:16x16]

A row is one compilation, in a process of its own; it takes a minute or more.
Rows that the results have are kept, so that an interrupted command resumes
where it stopped. The table is Markdown, for docs/pods.md.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import RESULTS, circumstances, log, write_results
from benchmarks.serving import ROOT
from fusion_jax.errors import InputError
from fusion_jax.startup import one_line_errors

_GIB, _MIB = 2**30, 2**20
# Base, big, and the heaviest scheme of each paper; mlrf and gtrans are big.
_CONFIGS = (
  'base',
  'big',
  'multi_layer_3',
  'em_routing',
  'feature_fusion_both',
  'mlrf',
  'gtrans',
)
_ACCUMULATING = 'mlrf', 'gtrans'
# Rows that divide over the chips and, on few of them, over accumulated parts.
_OVERRIDES = {
  'v5e:2x4': {name: {'data.batch.row_multiple': 128} for name in _ACCUMULATING},
  'v5e:16x16': {
    **{name: {'data.batch.row_multiple': 256} for name in _CONFIGS},
    **{
      name: {'data.batch.row_multiple': 256, 'optimizer.accumulation': 1}
      for name in _ACCUMULATING
    },
  },
}
_HEADER = (
  'config',
  'step',
  'batch',
  'memory a chip',
  'fits',
  'operations',
  'exchanges',
  'a chip sends',
  'compilation',
)


class Row(NamedTuple):
  """What is compiled."""

  topology: str
  step: str
  name: str

  @property
  def key(self) -> str:
    return ' '.join(self)

  @property
  def command(self) -> list[str]:
    """Without the interpreter and --output."""
    own = _OVERRIDES[self.topology].get(self.name, {})
    return [
      '-m',
      'fusion_jax.tools.aot',
      f'--config=configs/wmt14_ende.py:{self.name}',
      f'--topology={self.topology}',
      f'--step={self.step}',
      *(f'--config.{field}={value}' for field, value in own.items()),
    ]


def _rows(topologies: list[str]) -> Iterator[Row]:
  for topology in topologies:
    if topology not in _OVERRIDES:
      raise InputError(
        f'--topologies: no {topology!r}; there are {", ".join(_OVERRIDES)}'
      )
    for step in ('train', 'decode'):
      for name in _CONFIGS:
        yield Row(topology, step, name)


def _compiled(row: Row) -> dict[str, Any]:
  """The figures of a row, or the line that says why there are none.

  Raises:
    RuntimeError: it ended in an error of its own.
  """
  with tempfile.TemporaryDirectory() as folder:
    output = Path(folder, 'figures.json')
    answer = subprocess.run(
      [sys.executable, *row.command, f'--output={output}'],
      cwd=ROOT,
      capture_output=True,
      text=True,
    )
    if answer.returncode == 0:
      return json.loads(output.read_text())
    if answer.returncode != 2:  # Of an InputError.
      raise RuntimeError(f'{row.key}: {answer.stderr}')
    return {'refused': answer.stderr.splitlines()[-1]}


def _cells(row: Row, figures: dict[str, Any]) -> tuple[str, ...]:
  if 'refused' in figures:
    return (row.name, row.step, '', '', figures['refused'], *[''] * 4)
  shape, exchanges = figures['shape'], figures['exchanges'].values()
  most = 'up to ' if row.step == 'decode' else ''
  return (
    f'`{row.name}`',
    row.step,
    f'{shape["rows"]:,} x ({shape["source"]} + {shape["target"]})',
    f'{figures["peak"] / _GIB:.2f} GiB',
    'yes',
    f'{most}{figures["flops"] / 1e12:,.2f} T',
    f'{sum(each["count"] for each in exchanges):,}',
    f'{sum(each["sent"] for each in exchanges) / _MIB:,.1f} MiB',
    f'{figures["compile_seconds"]:.0f} s',
  )


def _table(topology: str, results: dict[str, Any]) -> str:
  lines = [_HEADER, ['---'] * len(_HEADER)]
  for key, figures in results['rows'].items():
    row = Row(*key.split())
    if row.topology == topology:
      lines.append(_cells(row, figures))
  text = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
  return f'{topology}\n\n{text}\n'


@one_line_errors
def main(argv: list[str]) -> None:
  """Compiles the rows that are missing, and prints the tables."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--topologies', default=','.join(_OVERRIDES))
  parser.add_argument('--output', type=Path, default=RESULTS / 'pods.json')
  arguments = parser.parse_args(argv)
  topologies = arguments.topologies.split(',')
  results = circumstances() | {'rows': {}}
  if arguments.output.exists():
    results = json.loads(arguments.output.read_text())
  for row in _rows(topologies):
    if row.key not in results['rows']:
      results['rows'][row.key] = figures = _compiled(row)
      write_results(arguments.output, results)
      log(f'{row.key}: {" | ".join(_cells(row, figures))}')
  for topology in topologies:
    print(_table(topology, results))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
