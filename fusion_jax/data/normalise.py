"""Normalisation of every line of text, applied before anything else."""

import re
import unicodedata

import regex

# Control characters end a line for some readers; U+2581 is the character that
# SentencePiece writes for a space.
_SPACES = re.compile(r'[\x00-\x1f\x7f-\x9f\u2581]')
_BYTE_ORDER_MARK = '\ufeff'
# What leaves no trace on paper, by the properties that Unicode gives it.
_INVISIBLE = regex.compile(r'[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}]*')


def normalise(line: str) -> str:
  """Return a line in NFC, without control characters or extra white space.

  Byte order marks are removed. Control characters (including the carriage
  return of CRLF) and U+2581, which SentencePiece reads as a space, become
  spaces. Runs of white space of any kind become one space, and the ends are
  stripped. A line of only invisible characters is empty: of Unicode's
  categories C and Z and of its property Default_Ignorable_Code_Point.
  """
  if not line.isascii():
    line = line.replace(_BYTE_ORDER_MARK, '')
    line = unicodedata.normalize('NFC', line)
  line = ' '.join(_SPACES.sub(' ', line).split())
  return '' if _INVISIBLE.fullmatch(line) else line


def normalised(pair: tuple[str, str]) -> tuple[str, str]:
  """Return both lines of a pair normalised."""
  return normalise(pair[0]), normalise(pair[1])
