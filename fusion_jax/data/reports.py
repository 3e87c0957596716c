"""Report of a prepared corpus: counts of its splits, summed and as a table."""

from collections.abc import Iterator, Sequence
from typing import Any

from fusion_jax.data import filtering


def report_table(report: dict[str, Any]) -> str:
  """Format the report of `PreparedCorpus` as a table for the log."""
  heads = ('pairs', 'kept', *filtering.REASONS)
  splits = dict(_rows(report))
  width = max(12, *map(len, splits))
  titles = [f'{"split":>{width}}', *(f'{head:>12}' for head in heads)]
  lines = ['  '.join(titles)]
  for name, split in splits.items():
    cells = [split['pairs'], split['kept'], *split['dropped'].values()]
    numbers = '  '.join(f'{cell:>12,}' for cell in cells)
    lines.append(f'{name:>{width}}  {numbers}')
  for name, split in report['splits'].items():
    kept = max(split['kept'], 1)
    means = [f'{subwords / kept:.1f}' for subwords in split['subwords']]
    shares = [
      f'{unknown / max(subwords, 1):.3%}'
      for unknown, subwords in zip(
        split['unknown'], split['subwords'], strict=True
      )
    ]
    lines.append(
      f'{name}: {" / ".join(means)} subwords a line (source / target), '
      f'{" / ".join(shares)} of them unknown'
    )
    if left := split['pairs'] - split['kept'] if name != 'train' else 0:
      lines.append(
        f'{name}: {left:,} of {split["pairs"]:,} pairs, empty or too long, are '
        'in no loss; all are translated, in parts where need be, and scored'
      )
  return '\n'.join(lines)


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yield every split, and each of its directions if there are several."""
  for name, split in report['splits'].items():
    yield name, split
    for direction, own in split.get('directions', {}).items():
      yield f'{name} {direction}', own


def summed(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """Add up the reports of one or more parts of a split."""
  reasons = reports[0]['dropped']
  return {
    **{
      count: sum(report[count] for report in reports)
      for count in ('pairs', 'kept')
    },
    'dropped': {
      reason: sum(report['dropped'][reason] for report in reports)
      for reason in reasons
    },
    **{
      sides: [
        sum(both)
        for both in zip(*(report[sides] for report in reports), strict=True)
      ]
      for sides in ('subwords', 'unknown')
    },
  }
