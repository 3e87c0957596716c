"""The corpora of an experiment, its directions, and how they become batches."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from fusion_jax.bounds import (
  Natural,
  NotNegative,
  Positive,
  PositiveFloat,
  Probability,
  Size,
  Text,
  Texts,
)
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
  def languages(self) -> tuple[str, str]:
    """Those of the source and the target."""
    return self.source_language, self.target_language

  @property
  def name(self) -> str:
    """The name of the direction: 'de-en' for German to English."""
    return '-'.join(self.languages)


def _check_directions(directions: Sequence[Direction], target_tag: str) -> None:
  """Refuse directions that cannot be told apart."""
  names: set[str] = set()
  targets: dict[str, str] = {}
  for direction in directions:
    require(
      direction.name not in names,
      _PATH,
      f'{direction.name} is there twice; join its corpora in one direction',
    )
    names.add(direction.name)
    first = targets.setdefault(direction.source_language, direction.name)
    require(
      bool(target_tag) or first == direction.name,
      'data.target_tag',
      f'must not be empty with {first} and {direction.name}; '
      "'<2{lang}>' is usual",
    )


def _check_tag(field: str, pattern: str, languages: Iterable[str]) -> None:
  """Refuse a pattern of tags that cannot be symbols of a vocabulary."""
  if not pattern:
    return
  require(
    _PLACE in pattern,
    field,
    f'must have {{lang}} where the language code goes, got {pattern!r}',
  )
  for language in languages:
    tag = pattern.replace(_PLACE, language)
    printable = tag.isprintable() and ' ' not in tag and _SPACE not in tag
    require(
      printable and tag not in _TAKEN,
      field,
      f'{tag!r} is no legal symbol: it must have neither white space nor '
      f'{_SPACE!r} and must not be one of {", ".join(_TAKEN)}',
    )


def both_ways(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
  """Return every pair of languages, each followed by its reverse."""
  return [way for pair in pairs for way in (pair, pair[::-1])]


def from_files(
  pair: tuple[str, str], pattern: str, splits: Sequence[str]
) -> Direction:
  """Return the direction of a pair whose files have names of one pattern."""
  train, valid, test = (
    (pattern.replace('{split}', split),) for split in splits
  )
  return Direction(*pair, train, valid, test)


@section('data.tokenizer')
class TokenizerConfig:
  """How text becomes subword ids (SentencePiece)."""

  algorithm: Literal['unigram', 'bpe'] = 'unigram'
  """'unigram' (Kudo 2018) or 'bpe' (Sennrich et al. 2016)."""

  vocabulary_size: Annotated[int, Field(ge=8, le=2**20)] = 32_000
  """Pieces in each vocabulary, the special symbols included."""

  byte_fallback: bool = False
  """Whether unknown characters become UTF-8 bytes instead of <unk>."""

  character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 1.0
  """Share of the characters of the corpus that get a piece of their own."""

  joint: bool = True
  """One vocabulary for both languages, or one for each."""

  training_lines: Natural = 2_000_000
  """Number of lines, evenly spaced, that train the tokenizer; 0: all. Each
  direction has the share of them that it has of the training."""

  source_model: Text = ''
  """A SentencePiece model to use instead of training one. With joint=True it
  serves both sides."""

  target_model: Text = ''
  """The SentencePiece model of the target side, with joint=False."""

  def __post_init__(self):
    require(
      not (self.joint and self.target_model),
      'data.tokenizer.target_model',
      'must be empty with joint=True: source_model serves both sides',
    )
    require(
      self.joint or bool(self.source_model) == bool(self.target_model),
      'data.tokenizer.source_model',
      'give both source_model and target_model, or neither',
    )


@section('data.filter')
class FilterConfig:
  """Which training pairs are dropped. Empty lines always are."""

  max_length: Annotated[int, Field(ge=2, le=2**20)] = 128
  """Longest source or target in subwords, tags and the end symbol included."""

  max_length_ratio: NotNegative = 0.0
  """Largest ratio of the two lengths in subwords; 0: any. Pairs in which both
  sides have at most 10 subwords are not tested."""

  drop_duplicates: bool = False
  """Whether a pair that has been seen before is dropped."""

  def __post_init__(self):
    require(
      self.max_length_ratio == 0 or self.max_length_ratio >= 1,
      'data.filter.max_length_ratio',
      f'must be 0 (any) or at least 1, got {self.max_length_ratio}',
    )


@section('data.batch')
class BatchConfig:
  """How examples become a bounded set of batch shapes."""

  tokens: Positive = 4_096
  """Slots of one batch on one side, padding included: a batch of R rows of S
  source and T target positions has R * (S + T) / 2 of them. This counts the
  whole batch, over all devices and all parts of an accumulation."""

  shapes: Size = 8
  """Largest number of (rows, source, target) shapes; each is compiled once."""

  length_multiple: Size = 1
  """Source and target lengths of a shape are multiples of this. 8 suits TPUs; 1
  leaves the least padding."""

  row_multiple: Size = 8
  """Rows of a shape are a multiple of this and of optimizer.accumulation. The
  devices that rows are sharded over, times accumulation, must divide it."""

  packing: bool = False
  """Put several training pairs into a row, none of which sees another; all
  batches then have one shape. Validation keeps to `shapes`."""


@section('data.sampling')
class SamplingConfig:
  """Subword regularisation of the training text (Kudo 2018; Provilkov 2020).

  Unigram: the smoothing exponent of the lattice sampling (0.1 in the paper).
  BPE: the probability of dropping a merge. 0: no sampling.
  """

  source_alpha: Probability = 0.0
  """Sampling of the source."""

  target_alpha: Probability = 0.0
  """Sampling of the target."""

  @property
  def enabled(self) -> bool:
    return self.source_alpha > 0 or self.target_alpha > 0


# The fields of `DataConfig` that `directions` replace.
_ONE_DIRECTION = (
  'source_language',
  'target_language',
  'train',
  'valid',
  'test',
)


@section('data')
class DataConfig:
  """Where the text comes from and how it becomes batches.

  A corpus is named by a string:
    'dir/train.{lang}.gz'              parallel files, one per language; plain,
                                       .gz, .bz2 or .xz
    'tfds:wmt14_translate/de-en:train' a TFDS translation dataset and split
    'embedded:train'                   the corpus that ships in the package
  """

  source_language: Text = 'en'
  """Language code of the source. It replaces {lang} in file names, and names
  the feature of a TFDS dataset."""

  target_language: Text = 'de'
  """Language code of the target."""

  train: Texts = ('embedded:train',)
  """Corpora of the training text, joined in this order."""

  valid: Texts = ('embedded:valid',)
  """Corpora of the validation text."""

  test: Texts = ('embedded:test',)
  """Corpora of the test text."""

  directions: Annotated[tuple[Direction, ...], Field(strict=False)] = ()
  """Several directions in one run, in place of the five fields above. All are
  encoded by the same tokenizer and trained in one mixture."""

  source_tag: Text = ''
  """Tag before the subwords of the source that names its language: '<2{lang}>'
  for example; '': none. A tag is one piece of the vocabulary, which no text is
  cut into and no translation has."""

  target_tag: Text = ''
  """Tag after that one which names the language to translate to (Johnson et al.
  2017); it is needed where one source language has several target languages."""

  mixing_temperature: PositiveFloat = 1.0
  """T: direction k has the share (n_k * weight_k)^(1/T) of the training pairs,
  up to a factor (Arivazhagan et al. 2019). 1: in proportion to its n_k pairs;
  the larger, the more alike."""

  root: Text = '.'
  """Folder that relative file names start from."""

  prepared: Text = 'prepared'
  """Folder of the prepared corpora, each in a folder named by its content."""

  embedded_pairs: Positive = 50_000
  """Pairs of the embedded training corpus."""

  tokenizer: TokenizerConfig = TokenizerConfig()
  filter: FilterConfig = FilterConfig()
  batch: BatchConfig = BatchConfig()
  sampling: SamplingConfig = SamplingConfig()

  def __post_init__(self):
    require(bool(self.train), 'data.train', 'must name at least one corpus')
    require(
      self.source_language != self.target_language,
      'data.target_language',
      f'must differ from the source language, both are '
      f'{self.source_language!r}',
    )
    self._check_directions()

  def _check_directions(self) -> None:
    every = self.all_directions
    sources, targets = zip(*(each.languages for each in every), strict=True)
    _check_tag('data.source_tag', self.source_tag, sources)
    _check_tag('data.target_tag', self.target_tag, targets)
    if not self.directions:
      return
    _check_directions(self.directions, self.target_tag)
    for field in dataclasses.fields(self):
      if field.name in _ONE_DIRECTION:
        require(
          getattr(self, field.name) == field.default,
          f'data.{field.name}',
          'has no effect with data.directions; leave it out',
        )

  @property
  def all_directions(self) -> tuple[Direction, ...]:
    """`directions`, or the one of the fields above them."""
    own = {name: getattr(self, name) for name in _ONE_DIRECTION}
    return self.directions or (Direction(**own),)

  def between(self, source: str, target: str) -> 'DataConfig':
    """The same with one direction, of these languages and with its corpora.

    Between languages that `directions` do not pair there is no text to
    validate or to test.
    """
    own: dict[str, Any] = {'valid': (), 'test': ()} if self.directions else {}
    for direction in self.directions:
      if direction.languages == (source, target):
        corpora = 'train', 'valid', 'test'
        own = {name: getattr(direction, name) for name in corpora}
    return dataclasses.replace(
      self, source_language=source, target_language=target, directions=(), **own
    )

  def tags(self, source: str, target: str) -> tuple[str, ...]:
    """What stands before a source line of one language for the other."""
    pairs = (self.source_tag, source), (self.target_tag, target)
    return tuple(tag.replace(_PLACE, name) for tag, name in pairs if tag)

  @property
  def all_tags(self) -> tuple[str, ...]:
    """Those of all directions, each once."""
    tags = (self.tags(*each.languages) for each in self.all_directions)
    return tuple(dict.fromkeys(itertools.chain(*tags)))
