"""Evaluation of translations; here the texts that are compared."""

from collections.abc import Mapping
from typing import NamedTuple

from fusion_jax.metrics import Words, words_of


class TextFile(NamedTuple):
  """The lines of a file, without trailing white space as sacreBLEU reads them.

  If a run made them, `run` is its directory and step.
  """

  path: str
  lines: tuple[str, ...]
  run: str = ''
  languages: tuple[str, str] = ('', '')


class Texts(NamedTuple):
  """Texts to compare.

  Attributes:
    systems: Files of each system, one for each seed; the baseline first.
    languages: Source and target; they decide what a word is, '' as 13a does.
    train_target: Text in which word frequencies are counted; None for the first
      reference.
    bleu_tokenizer: BLEU's tokenizer, as in `DecodingConfig`.
  """

  source: TextFile
  references: tuple[TextFile, ...]
  systems: Mapping[str, tuple[TextFile, ...]]
  languages: tuple[str, str]
  train_target: TextFile | None
  bleu_tokenizer: str

  @property
  def target_words(self) -> Words:
    """How references and translations are cut into words."""
    return words_of(self.languages[1], self.bleu_tokenizer)
