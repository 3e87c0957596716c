"""What has been measured, and what has not: a page for people."""

from collections.abc import Mapping
from typing import Any

from benchmarks.acceleration.work import Part
from benchmarks.common import table

_DEVICE = ('kind', 'devices', 'memory_mb', 'driver', 'runtime')


def report(results: Mapping[str, Any], parts: Mapping[str, Part]) -> str:
  """Return Markdown.

  Args:
    results: of `benchmarks.accelerator`.
    parts: all that there are.
  """
  sections = ['# Measured on an accelerator']
  if results['size'] == 'tiny':
    sections.append('tiny sizes: no result')
  sections.append(_block(_circumstances(results)))
  for name, part in parts.items():
    found = results['results'].get(name)
    text = _block(part.table(found)) if found else 'Nothing yet.'
    sections.append(f'## {name}: {part.does}\n\n{text}')
  for title, key in (('Failed', 'failed'), ('Left out', 'left_out')):
    lines = [f'- {name}: {why}' for name, why in results[key].items()]
    sections.append('\n'.join((f'## {title}', '', *(lines or ['Nothing.']))))
  return '\n\n'.join(sections) + '\n'


def plan(parts: Mapping[str, Part], expected: Mapping[str, float]) -> str:
  """Return the pieces, with minutes or the reason why they are left out.

  Args:
    parts: that are chosen.
    expected: minutes of the pieces that are not finished.
  """
  rows, total = [], 0.0
  for part in parts.values():
    for piece in part.pieces:
      if piece.name not in expected:
        rows.append((piece.name, 'finished'))
      elif piece.missing:
        rows.append((piece.name, f'left out: {piece.missing}'))
      else:
        rows.append((piece.name, f'{expected[piece.name]:.1f}'))
        total += expected[piece.name]
  return table(('piece', 'minutes'), [*rows, ('all', f'{total:.1f}')])


def _circumstances(results: Mapping[str, Any]) -> str:
  own = {key: results['device'][key] for key in _DEVICE}
  others = {
    key: value
    for key, value in results.items()
    if isinstance(value, str | int) and key != 'size'
  }
  lines = (own | others).items()
  return '\n'.join(f'{key}: {_line(value)}' for key, value in lines)


def _line(value: Any) -> str:
  return ' '.join(str(value).split())


def _block(text: str) -> str:
  """Tables that are no Markdown yet are shown as they are."""
  return text.strip() if '| --- |' in text else f'```\n{text}\n```'
