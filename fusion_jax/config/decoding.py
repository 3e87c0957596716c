"""The options of decoding and their checks; each is described here, once."""

import dataclasses
import types
from typing import Annotated, Literal, TypeAlias

from fusion_jax.bounds import (
  Beam,
  Bound,
  NotNegative,
  Positive,
  PositiveFloat,
  Probability,
  Seed,
  Size,
  SizeOrZero,
  check_fields,
)

# Times the length of a source, or the beam.
_Times: TypeAlias = Annotated[NotNegative, Bound('<=', 1_000)]


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
  """Beam search; also the defaults of decode.py."""

  __pydantic_config__ = types.MappingProxyType({'extra': 'forbid'})

  beam_size: Beam = 4
  # 'gnmt': score / ((5 + length) / 6)^alpha (Wu et al. 2016, Eq. 14).
  # 'length': score / length^alpha. 'none': the sum of log-probabilities.
  length_penalty: Literal['gnmt', 'length', 'none'] = 'gnmt'
  alpha: Annotated[NotNegative, Bound('<=', 10)] = 0.6
  # Weight beta of the coverage penalty (Wu et al. 2016, Eq. 14), which is
  # added to that; 0: none.
  coverage: NotNegative = 0.0
  # A hypothesis has at most max_length_ratio * source + max_length_extra
  # subwords, the end symbol included on both sides.
  max_length_ratio: _Times = 2.0
  max_length_extra: Size = 10
  # And at least min_length_ratio * source + min_length_extra of them, as far
  # as that is below its most.
  min_length_ratio: _Times = 0.0
  min_length_extra: SizeOrZero = 0
  # The search of a sentence also ends when patience * beam_size hypotheses are
  # finished (Kasai et al. 2022); 0: only when nothing better can come.
  patience: _Times = 0.0
  # Tokens that no translation has: the unknown one, and these pieces.
  forbid_unknown: bool = False
  forbidden: tuple[str, ...] = ()
  # No n-gram of subwords of this size twice (Paulus et al. 2018); 0: any.
  no_repeat_ngram: SizeOrZero = 0
  # 'beam': the most probable translations. 'sample': random ones, as many as
  # are asked for.
  search: Literal['beam', 'sample'] = 'beam'
  # Sampling: logits are divided by the temperature; only the top_k most
  # probable tokens (Fan et al. 2018; 0: all), and of these the fewest that
  # have probability top_p together (Holtzman et al. 2020; 1: all).
  temperature: PositiveFloat = 1.0
  top_k: SizeOrZero = 0
  top_p: Annotated[Probability, Bound('>', 0)] = 1.0
  # Sampling: decides the draws, with the number of the line.
  seed: Seed = 0
  # Longer source lines are translated in pieces of so many subwords.
  max_source_length: Size = 256
  # Slots of a batch: rows * beam * source length.
  batch_tokens: Positive = 16_384

  def __post_init__(self):
    check_fields(self, 'decoding')
