"""The corpora of an experiment and how they become batches."""

import dataclasses
import types
from typing import Annotated, Literal

from fusion_jax.bounds import (
  Bound,
  Natural,
  NotNegative,
  Positive,
  PositiveFloat,
  Probability,
  Size,
  SizeOrZero,
  check_fields,
)
from fusion_jax.config.directions import (
  Direction,
  check_directions,
  check_tag,
  tag_of,
)
from fusion_jax.errors import require

_STRICT = types.MappingProxyType({'extra': 'forbid'})


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
  """How text becomes subword ids (SentencePiece)."""

  __pydantic_config__ = _STRICT

  # 'unigram' (Kudo 2018) or 'bpe' (Sennrich et al. 2016).
  algorithm: Literal['unigram', 'bpe'] = 'unigram'
  # Pieces in each vocabulary, the special symbols included.
  vocabulary_size: Annotated[Size, Bound('>=', 8)] = 32_000
  # Unknown characters become UTF-8 bytes instead of <unk>.
  byte_fallback: bool = False
  # Share of the characters of the corpus that get a piece of their own.
  character_coverage: Annotated[Probability, Bound('>=', 0.9)] = 1.0
  # One vocabulary for both languages, or one for each.
  joint: bool = True
  # At most so many lines, evenly spaced, train the tokenizer; 0: all. Each
  # direction has the share of them that it has of the training.
  training_lines: Natural = 2_000_000
  # Use these SentencePiece models and train none. With joint=True only
  # source_model is given.
  source_model: str = ''
  target_model: str = ''

  def __post_init__(self):
    check_fields(self, 'data.tokenizer')
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


@dataclasses.dataclass(frozen=True)
class FilterConfig:
  """Which training pairs are dropped. Empty lines always are."""

  __pydantic_config__ = _STRICT

  # Longest source or target in subwords, tags and the end symbol included.
  max_length: Annotated[Size, Bound('>=', 2)] = 128
  # Largest ratio of the two lengths in subwords; 0: any. Pairs in which
  # both sides have at most 10 subwords are not tested.
  max_length_ratio: NotNegative = 0.0
  # Drop a pair that has been seen before.
  drop_duplicates: bool = False

  def __post_init__(self):
    check_fields(self, 'data.filter')
    require(
      self.max_length_ratio == 0 or self.max_length_ratio >= 1,
      'data.filter.max_length_ratio',
      f'must be 0 (any) or at least 1, got {self.max_length_ratio}',
    )


@dataclasses.dataclass(frozen=True)
class BatchConfig:
  """How examples become a bounded set of batch shapes."""

  __pydantic_config__ = _STRICT

  # Slots of one batch on one side, padding included: a batch of R rows of
  # S source and T target positions has R * (S + T) / 2 of them. It counts
  # the whole batch over all devices and all accumulated parts.
  tokens: Positive = 4_096
  # At most so many (rows, source, target) shapes; each is compiled once.
  shapes: Size = 8
  # Source and target lengths of a shape are multiples of this. 8 suits
  # TPUs; 1 leaves the least padding.
  length_multiple: Size = 1
  # Rows of a shape are a multiple of this and of optimizer.accumulation. The
  # devices that rows are cut over, times accumulation, must divide it.
  row_multiple: Size = 8
  # Several training pairs share a row, none of which sees another; all
  # batches then have one shape. Validation keeps to `shapes`.
  packing: bool = False
  # Source and target positions of a packed row, at least
  # data.filter.max_length; 0: chosen from the lengths of the corpus.
  packed_source: SizeOrZero = 0
  packed_target: SizeOrZero = 0

  def __post_init__(self):
    check_fields(self, 'data.batch')
    for field in ('packed_source', 'packed_target'):
      value, multiple = getattr(self, field), self.length_multiple
      require(
        self.packing or not value,
        f'data.batch.{field}',
        f'needs data.batch.packing=True, got {value} without it',
      )
      require(
        value % multiple == 0,
        f'data.batch.{field}',
        f'must be a multiple of data.batch.length_multiple={multiple}, got '
        f'{value}',
      )


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
  """Subword regularisation of the training text (Kudo 2018; Provilkov 2020)."""

  __pydantic_config__ = _STRICT

  # Unigram: the smoothing exponent of the lattice sampling (0.1 in the
  # paper). BPE: the probability of dropping a merge. 0: no sampling.
  source_alpha: Probability = 0.0
  target_alpha: Probability = 0.0

  def __post_init__(self):
    check_fields(self, 'data.sampling')

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


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """Where the text comes from and how it becomes batches.

  A corpus is named by a string:
    'dir/train.{lang}.gz'              parallel files, one per language; plain,
                                       .gz or .xz
    'tfds:wmt14_translate/de-en:train' a TFDS translation dataset and split
    'embedded:train'                   the corpus that ships in the package
  """

  __pydantic_config__ = _STRICT

  # Language codes; they replace {lang} in file names, and name the features
  # of a TFDS dataset.
  source_language: str = 'en'
  target_language: str = 'de'
  # Corpora of each split, joined in this order.
  train: tuple[str, ...] = ('embedded:train',)
  valid: tuple[str, ...] = ('embedded:valid',)
  test: tuple[str, ...] = ('embedded:test',)
  # Several directions in one run, in place of the five fields above. All are
  # encoded by the same tokenizer and trained in one mixture.
  directions: tuple[Direction, ...] = ()
  # Tags before the subwords of the source, first that of its language, then
  # that of the language to translate to: '<2{lang}>' for example; '': none.
  # The target's (Johnson et al. 2017) is needed where one source language has
  # several target languages. Each tag is one piece of the vocabulary, which no
  # text is cut into and no translation has.
  source_tag: str = ''
  target_tag: str = ''
  # T: direction k has the share (n_k * weight_k)^(1/T) of the training pairs,
  # up to a factor (Arivazhagan et al. 2019). 1: in proportion to its n_k
  # pairs; the larger, the more alike.
  mixing_temperature: PositiveFloat = 1.0
  # Relative file names start here.
  root: str = '.'
  # Prepared corpora live here, each in a folder named by its content.
  prepared: str = 'prepared'
  # Pairs of the embedded training corpus.
  embedded_pairs: Positive = 50_000
  tokenizer: TokenizerConfig = TokenizerConfig()
  filter: FilterConfig = FilterConfig()
  batch: BatchConfig = BatchConfig()
  sampling: SamplingConfig = SamplingConfig()

  def __post_init__(self):
    check_fields(self, 'data')
    require(bool(self.train), 'data.train', 'must name at least one corpus')
    require(
      self.source_language != self.target_language,
      'data.target_language',
      f'must differ from the source language, both are '
      f'{self.source_language!r}',
    )
    self._check_directions()
    self._check_packing()

  def _check_directions(self) -> None:
    every = self.all_directions
    for side in ('source', 'target'):
      languages = [getattr(each, f'{side}_language') for each in every]
      check_tag(f'data.{side}_tag', getattr(self, f'{side}_tag'), languages)
    if not self.directions:
      return
    check_directions(self.directions, self.target_tag)
    for field in dataclasses.fields(self):
      if field.name in _ONE_DIRECTION:
        require(
          getattr(self, field.name) == field.default,
          f'data.{field.name}',
          'has no effect with data.directions; leave it out',
        )

  def _check_packing(self) -> None:
    longest = self.filter.max_length
    for field in ('packed_source', 'packed_target'):
      size = getattr(self.batch, field)
      require(
        size == 0 or size >= longest,
        f'data.batch.{field}',
        f'must be 0 (chosen) or at least data.filter.max_length={longest}, '
        f'got {size}',
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
    own = {'valid': (), 'test': ()} if self.directions else {}
    for each in self.directions:
      if (each.source_language, each.target_language) == (source, target):
        own = {name: getattr(each, name) for name in ('train', 'valid', 'test')}
    return dataclasses.replace(
      self,
      source_language=source,
      target_language=target,
      directions=(),
      **own,
    )

  def tags(self, source: str, target: str) -> tuple[str, ...]:
    """What stands before a source line of one language for the other."""
    pairs = (self.source_tag, source), (self.target_tag, target)
    return tuple(tag_of(*each) for each in pairs if each[0])

  @property
  def all_tags(self) -> tuple[str, ...]:
    """Those of all directions, each once."""
    tags = (
      self.tags(each.source_language, each.target_language)
      for each in self.all_directions
    )
    return tuple(dict.fromkeys(tag for own in tags for tag in own))
