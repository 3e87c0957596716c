"""The options of decoding and their checks; each is described here, once."""

import dataclasses
import types
from typing import Literal

from fusion_jax.errors import require, require_at_least


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
  """Beam search; also the defaults of decode.py."""

  __pydantic_config__ = types.MappingProxyType({'extra': 'forbid'})

  beam_size: int = 4
  # 'gnmt': score / ((5 + length) / 6)^alpha (Wu et al. 2016, Eq. 14).
  # 'length': score / length^alpha. 'none': the sum of log-probabilities.
  length_penalty: Literal['gnmt', 'length', 'none'] = 'gnmt'
  alpha: float = 0.6
  # Weight beta of the coverage penalty (Wu et al. 2016, Eq. 14), which is
  # added to that; 0: none.
  coverage: float = 0.0
  # A hypothesis has at most max_length_ratio * source + max_length_extra
  # subwords, the end symbol included on both sides.
  max_length_ratio: float = 2.0
  max_length_extra: int = 10
  # And at least min_length_ratio * source + min_length_extra of them, as far
  # as that is below its most.
  min_length_ratio: float = 0.0
  min_length_extra: int = 0
  # The search of a sentence also ends when patience * beam_size hypotheses are
  # finished (Kasai et al. 2022); 0: only when nothing better can come.
  patience: float = 0.0
  # Tokens that no translation has: the unknown one, and these pieces.
  forbid_unknown: bool = False
  forbidden: tuple[str, ...] = ()
  # No n-gram of subwords of this size twice (Paulus et al. 2018); 0: any.
  no_repeat_ngram: int = 0
  # 'beam': the most probable translations. 'sample': random ones, as many as
  # are asked for.
  search: Literal['beam', 'sample'] = 'beam'
  # Sampling: logits are divided by the temperature; only the top_k most
  # probable tokens (Fan et al. 2018; 0: all), and of these the fewest that
  # have probability top_p together (Holtzman et al. 2020; 1: all).
  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 1.0
  # Sampling: decides the draws, with the number of the line.
  seed: int = 0
  # Longer source lines are translated in pieces of so many subwords.
  max_source_length: int = 256
  # Slots of a batch: rows * beam * source length.
  batch_tokens: int = 16_384

  def __post_init__(self):
    sizes = 'beam_size', 'max_source_length', 'batch_tokens'
    require_at_least(1, self, 'decoding', *sizes, 'max_length_extra')
    lengths = 'max_length_ratio', 'min_length_ratio', 'min_length_extra'
    others = 'alpha', 'coverage', 'patience', 'no_repeat_ngram', 'top_k', 'seed'
    require_at_least(0, self, 'decoding', *lengths, *others)
    require(
      self.temperature > 0,
      'decoding.temperature',
      f'must be > 0, got {self.temperature}; beam_size=1 is greedy',
    )
    require(
      0 < self.top_p <= 1,
      'decoding.top_p',
      f'must be in (0, 1], got {self.top_p}',
    )
