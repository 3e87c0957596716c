"""The edits that TER counts, as sacreBLEU counts them, in less time.

Nearly all the time of TER (Snover et al. 2006,
https://aclanthology.org/2006.amta-papers.25) goes into the edit distance of
translations with some words moved. sacreBLEU fills a table for it, near the
diagonal; here a column of the table is a few operations on long integers
(Hyyrö 2003, A bit-vector algorithm for computing Levenshtein and Damerau edit
distances). Where the two can differ, sacreBLEU's is taken.
"""

from collections.abc import Sequence

from sacrebleu.metrics import TER, lib_ter

# sacreBLEU looks at places at most 25 from the diagonal. A path of d edits is
# at most d from it, and one more for rounding.
_INSIDE = 23


class FastTER(TER):
  """sacreBLEU's TER: the same statistics and signature."""

  def _compute_segment_statistics(
    self, hypothesis: str, ref_kwargs: dict[str, list[list[str]]]
  ) -> list[int | float]:
    references = ref_kwargs['ref_words']
    words = hypothesis.split()
    least = min(edits(words, reference) for reference in references)
    return [least, sum(map(len, references)) / len(references)]


def edits(words: list[str], reference: list[str]) -> int:
  """The fewest edits, moves of sequences among them, that a search finds.

  Args:
    words: of the translation.
    reference: its words.

  Returns:
    What `sacrebleu.metrics.lib_ter.translation_edit_rate` does.
  """
  if not reference:
    return len(words)
  distance = _Distance(reference)
  moves = checked = 0
  while True:
    distance.traced = words
    gain, moved, checked = lib_ter._shift(words, reference, distance, checked)
    if checked >= lib_ter._MAX_SHIFT_CANDIDATES or gain <= 0:
      return moves + distance(words)[0]
    moves, words = moves + 1, moved


class _Distance:
  """The edit distance of translations to a reference.

  Attributes:
    traced: the translation whose trace is asked for, not the distance alone.
  """

  def __init__(self, reference: list[str]):
    self.traced: list[str] = []
    self._by_table = lib_ter.BeamEditDistance(reference)
    self._length = len(reference)
    self._places: dict[str, int] = {}
    for place, word in enumerate(reference):
      self._places[word] = self._places.get(word, 0) | 1 << place

  def __call__(self, words: list[str]) -> tuple[int, str]:
    """Distance and trace; a trace of `traced` alone."""
    if words is not self.traced:
      distance = self._whole(words)
      if distance <= _INSIDE or self._length <= _INSIDE:
        return distance, ''
    return self._by_table(words)

  def _whole(self, words: Sequence[str]) -> int:
    """The Levenshtein distance; a bit for each word of the reference.

    A bit of `more` says that the column of the table grows by one from the
    word before to this one, one of `less` that it falls.
    """
    every = (1 << self._length) - 1
    last = 1 << self._length - 1
    more, less, distance = every, 0, self._length
    for word in words:
      equal = self._places.get(word, 0)
      diagonal = ((equal & more) + more ^ more) | equal
      up = less | ~(diagonal | more)
      down = more & diagonal
      if up & last:
        distance += 1
      elif down & last:
        distance -= 1
      up = up << 1 | 1
      below = equal | less
      more = (down << 1 | ~(below | up)) & every
      less = up & below & every
    return distance
