"""Where the time of a search goes: products, norms, top-k and others.

    python -m benchmarks.search_parts --size=base

Profiles a search of each task of decode_throughput, and prints microseconds
for each step of the decoder. `between` is the time in which no instruction
runs.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchmarks import common
from benchmarks.contestants import FusionJaxSearch
from benchmarks.hlo_traffic import origin
from benchmarks.kernels import device_events, profile
from benchmarks.sizes import LENGTH, SIZES, TASKS, Size, Task
from fusion_jax.runs.precision import Precision
from fusion_jax.tools.aot.counts import called, computations

_PRECISIONS: tuple[Precision, ...] = 'float32', 'int8', 'bfloat16'
_INSTRUCTION = re.compile(r'^\s+(?:ROOT )?%?([\w.-]+) = ')
_DOT = re.compile(r' = (\S+?)[{ ].* dot\(')
# By the origin of an instruction that is no product.
_ORIGINS = (
  ('encoder', re.compile(r'Transformer\.(encode|start_decoding)\b')),
  ('cache', re.compile(r'dynamic_update_slice')),
  ('norms and residuals', re.compile(r'_residual\b|norm/')),
  ('attention, but products', re.compile(r'_attention\b')),
  ('top-k', re.compile(r'top_k|approx')),
)
_PARTS = (
  *('layers, products', 'attention, products', 'logits'),
  *(name for name, _ in _ORIGINS),
  *('other', 'between'),
)


def main(argv: list[str]) -> None:
  parser = common.make_parser(__doc__, common.RESULTS / 'search_parts.json')
  parser.add_argument('--size', choices=SIZES, default='base')
  arguments = parser.parse_args(argv)
  size, results = SIZES[arguments.size], common.circumstances()
  for precision in _PRECISIONS:
    results[precision] = {
      task.name: parts(size, task, precision) for task in TASKS
    }
    print(f'\n{precision}, microseconds a step\n{_table(results[precision])}')
  common.write_results(arguments.output, results)


def _table(tasks: Mapping[str, Mapping[str, float]]) -> str:
  rows = [
    (name, *(f'{of_task[name]:,.0f}' for of_task in tasks.values()))
    for name in (*_PARTS, 'all')
  ]
  return common.table(('', *tasks), rows)


def parts(size: Size, task: Task, precision: Precision) -> dict[str, float]:
  """Microseconds of a step, by part."""
  search = FusionJaxSearch(size, task, 'float32', precision=precision)
  search.step()
  names = part_names(search.text, size)
  events = sorted(device_events(profile(search.step)), key=lambda x: x.begin)
  spent: Counter[str] = Counter()
  last = events[0].begin
  for event in events:
    # Of instructions one inside the other, the inner one is not counted.
    part = names.get(event.operation, 'other')
    spent[part] += max(event.end - max(event.begin, last), 0)
    last = max(last, event.end)
  whole = last - events[0].begin
  spent['between'] = whole - spent.total()
  steps = LENGTH * len(task.batches(size)) * 1e3
  return {name: spent[name] / steps for name in _PARTS} | {'all': whole / steps}


def part_names(text: str, size: Size) -> dict[str, str]:
  """The part of a search that each instruction belongs to."""
  bodies = computations(text)
  names: dict[str, str] = {}
  for lines in bodies.values():
    for line in lines:
      if match := _INSTRUCTION.match(line):
        names[match[1]] = _part(line, bodies, size)
  return names


def _part(line: str, bodies: Mapping[str, Any], size: Size) -> str:
  where = origin(line)
  inside = [one for name in called(line) for one in bodies.get(name, ())]
  for candidate in (line, *inside):
    where = where or origin(candidate)
    if (dot := _DOT.search(candidate)) and ' while(' not in line:
      if _ORIGINS[0][1].search(where):
        return 'encoder'
      sides = [int(x) for x in re.findall(r'\d+', dot[1].partition('[')[2])]
      if size.vocabulary in sides:
        return 'logits'
      return 'attention, products' if len(sides) > 2 else 'layers, products'
  return next((name for name, way in _ORIGINS if way.search(where)), 'other')


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
