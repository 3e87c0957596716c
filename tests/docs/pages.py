"""The documents, and the commands in their blocks of code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
  path.relative_to(ROOT)
  for path in (
    ROOT / 'README.md',
    ROOT / 'CONTRIBUTING.md',
    *(ROOT / 'docs').glob('*.md'),
  )
)


def commands(text: str, program: str) -> list[str]:
  """What follows a program in the lines of code, as one line each."""
  blocks = '\n'.join(_code_lines(text)).replace('\\\n', ' ')
  starts = rf'(?m)(?:^|[|;&]) *{re.escape(program)} ([^|;\n]*)'
  inline = re.findall(rf'`{re.escape(program)} ([^`]*)`', text)
  return [*re.findall(starts, blocks), *(' '.join(x.split()) for x in inline)]


def _code_lines(text: str) -> list[str]:
  """Return the lines of fenced and of indented blocks."""
  lines, fenced = [], False
  for line in text.splitlines():
    if line.startswith('```'):
      fenced = not fenced
    elif fenced or line.startswith('    '):
      lines.append(line.strip())
  return lines
