"""Tables as Markdown."""

from collections.abc import Iterable, Sequence


def markdown_name(name: str) -> str:
  """Return a name that Markdown leaves unchanged, in tables too."""
  return f'`{name.replace("`", "").replace("|", chr(92) + "|")}`'


def table(
  header: Sequence[str], rows: Iterable[Sequence[str]], numeric: bool = False
) -> str:
  """Write a table; numbers stand at the right."""
  sides = [':--'] + ['--:'] * (len(header) - 1)
  rule = sides if numeric else ['---'] * len(header)
  return '\n'.join(f'| {" | ".join(line)} |' for line in (header, rule, *rows))
