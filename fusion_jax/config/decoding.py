"""The options of decoding."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fusion_jax.bounds import (
  Beam,
  NotNegative,
  Positive,
  PositiveFloat,
  Seed,
  Size,
  SizeOrZero,
  Texts,
)
from fusion_jax.config.section import section

# Those of sacreBLEU, which is not imported here.
BleuTokenizer: TypeAlias = Literal[
  '',
  '13a',
  'char',
  'flores101',
  'flores200',
  'intl',
  'ja-mecab',
  'ko-mecab',
  'none',
  'spBLEU-1K',
  'spm',
  'zh',
]
# Times the length of a source, or the beam.
_Times: TypeAlias = Annotated[float, Field(ge=0, le=1_000)]


@section('decoding')
class DecodingConfig:
  """Beam search; also the defaults of `fusion-jax decode`."""

  beam_size: Beam = 4
  """Hypotheses that are extended of each sentence; 1: greedy search."""

  length_penalty: Literal['gnmt', 'length', 'none'] = 'gnmt'
  """Score of a hypothesis. 'gnmt': log P / ((5 + length) / 6)^alpha (Wu et al.
  2016, Eq. 14); 'length': log P / length^alpha; 'none': log P."""

  alpha: Annotated[float, Field(ge=0, le=10)] = 0.6
  """Exponent of the length penalty."""

  coverage: NotNegative = 0.0
  """Weight beta of the coverage penalty (Wu et al. 2016, Eq. 14), which is
  added to the score; 0: none."""

  max_length_ratio: _Times = 2.0
  """A hypothesis has at most max_length_ratio * source + max_length_extra
  subwords, the end symbol included on both sides."""

  max_length_extra: Size = 10
  """The summand of the limit above."""

  min_length_ratio: _Times = 0.0
  """A hypothesis has at least min_length_ratio * source + min_length_extra
  subwords, as far as that is below its limit."""

  min_length_extra: SizeOrZero = 0
  """The summand of the least length above."""

  patience: _Times = 0.0
  """The search of a sentence also ends when patience * beam_size hypotheses are
  finished (Kasai et al. 2022); 0: only when nothing better can come."""

  forbid_unknown: bool = False
  """Whether no translation has the unknown token."""

  forbidden: Texts = ()
  """Pieces that no translation has."""

  no_repeat_ngram: SizeOrZero = 0
  """No n-gram of subwords of this size twice (Paulus et al. 2018); 0: any."""

  search: Literal['beam', 'sample'] = 'beam'
  """'beam': the most probable translations. 'sample': random ones, as many as
  are asked for."""

  temperature: PositiveFloat = 1.0
  """Sampling: divisor of the logits."""

  top_k: SizeOrZero = 0
  """Sampling: only the top_k most probable tokens (Fan et al. 2018); 0: all."""

  top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
  """Sampling: of these tokens the fewest that have this probability together
  (Holtzman et al. 2020); 1: all."""

  seed: Seed = 0
  """Sampling: decides the draws, with the number of the line."""

  max_source_length: Size = 256
  """Longer source lines are translated in parts of at most this length, in
  subwords."""

  batch_tokens: Positive = 16_384
  """Slots of a batch: rows * beam * source length."""

  bleu_tokenizer: BleuTokenizer = ''
  """Tokenizer of BLEU, by sacreBLEU's name, some of which are downloaded; '':
  that of the target language."""
