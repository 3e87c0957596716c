"""What happens to every line of text before anything else sees it."""

import re
import unicodedata

# Control characters end a line in some reader or other; U+2581 is the sign
# by which SentencePiece writes a space.
_SPACES = re.compile(r'[\x00-\x1f\x7f-\x9f\u2581]')
_BYTE_ORDER_MARK = '\ufeff'


def normalise(line: str) -> str:
  """One line in NFC, without control characters or superfluous white space.

  Byte order marks go; control characters (the carriage return of CRLF among
  them) and U+2581, which SentencePiece reads as a space, become spaces; runs
  of white space of any kind become one space; the ends are stripped.

  Args:
    line: text, possibly with its line end.

  Returns:
    The normalised line; normalising it again changes nothing.
  """
  if not line.isascii():
    line = line.replace(_BYTE_ORDER_MARK, '')
    line = unicodedata.normalize('NFC', line)
  return ' '.join(_SPACES.sub(' ', line).split())
