"""Directions of translation in one run, and the tags that tell them apart."""

from collections.abc import Iterable, Sequence

from fusion_jax.bounds import PositiveFloat, Text, Texts
from fusion_jax.config.section import section
from fusion_jax.errors import require

_PATH = 'data.directions'
_PLACE = '{lang}'
# SentencePiece writes a space like this.
_SPACE = '\u2581'
# Every SentencePiece model has these symbols.
_TAKEN = ('<pad>', '<unk>', '<s>', '</s>')


@section('data.directions')
class Direction:
  """Direction of a run that has several, and its corpora.

  Language codes and corpora are as in `DataConfig`.
  """

  source_language: Text
  """Language code of the source."""

  target_language: Text
  """Language code of the target."""

  train: Texts
  """Corpora of the training text."""

  valid: Texts = ()
  """Corpora of the validation text; without them the direction is trained and
  not validated."""

  test: Texts = ()
  """Corpora of the test text."""

  weight: PositiveFloat = 1.0
  """Counts each training pair this number of times where `mixing_temperature`
  finds the direction's share of the training."""

  def __post_init__(self):
    require(
      self.source_language != self.target_language,
      _PATH,
      f'{self.name}: source and target language must differ',
    )
    require(
      bool(self.train),
      _PATH,
      f'{self.name}: its train must name at least one corpus',
    )

  @property
  def name(self) -> str:
    """The name of the direction: 'de-en' for German to English."""
    return f'{self.source_language}-{self.target_language}'


def check_directions(directions: Sequence[Direction], target_tag: str) -> None:
  """Refuse directions that cannot be told apart."""
  names: set[str] = set()
  targets: dict[str, str] = {}
  for each in directions:
    require(
      each.name not in names,
      _PATH,
      f'{each.name} is there twice; join its corpora in one direction',
    )
    names.add(each.name)
    first = targets.setdefault(each.source_language, each.name)
    require(
      bool(target_tag) or first == each.name,
      'data.target_tag',
      f"must not be empty with {first} and {each.name}; '<2{{lang}}>' is usual",
    )


def check_tag(field: str, pattern: str, languages: Iterable[str]) -> None:
  """Refuse a pattern of tags that cannot be symbols of a vocabulary."""
  if not pattern:
    return
  require(
    _PLACE in pattern,
    field,
    f'must have {{lang}} where the language code goes, got {pattern!r}',
  )
  for tag in (tag_of(pattern, language) for language in languages):
    printable = tag.isprintable() and ' ' not in tag and _SPACE not in tag
    require(
      printable and tag not in _TAKEN,
      field,
      f'{tag!r} is no legal symbol: it must have neither white space nor '
      f'{_SPACE!r} and must not be one of {", ".join(_TAKEN)}',
    )


def tag_of(pattern: str, language: str) -> str:
  """Return the tag of a language."""
  return pattern.replace(_PLACE, language)


def both_ways(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
  """Return every pair of languages, each followed by its reverse."""
  return [each for pair in pairs for each in (pair, pair[::-1])]


def from_files(
  pair: tuple[str, str], pattern: str, splits: Sequence[str]
) -> Direction:
  """Return the direction of a pair whose files have names of one pattern."""
  train, valid, test = (
    (pattern.replace('{split}', split),) for split in splits
  )
  return Direction(*pair, train, valid, test)
