"""Corpus BLEU, chrF and TER as sacreBLEU computes them.

Every score is reported together with its signature (Post 2018,
https://aclanthology.org/W18-6319).
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric, Signature

from fusion_jax.errors import InputError, first_line
from fusion_jax.languages import Words, words_of


@dataclasses.dataclass(frozen=True)
class Scores:
  """BLEU (Papineni et al. 2002) and chrF (Popović 2015), from 0 to 100.

  Attributes:
    bleu: Cased BLEU of detokenised text.
    chrf: chrF2 score.
    bleu_signature: sacreBLEU's signature of `bleu`.
    chrf_signature: sacreBLEU's signature of `chrf`.
    report: Both scores as sacreBLEU prints them, one line each.
  """

  bleu: float
  chrf: float
  bleu_signature: str
  chrf_signature: str
  report: str


def corpus_scores(
  hypotheses: Sequence[str],
  references: Sequence[str],
  target_language: str | Words,
) -> Scores:
  """Score translations against one reference each."""
  check_line_counts(len(hypotheses), len(references))
  bleu, chrf = (
    _scored(metric, hypotheses, references)
    for metric in (bleu_for(target_language), CHRF())
  )
  report = f'{bleu.line}\n{chrf.line}'
  return Scores(bleu.value, chrf.value, bleu.signature, chrf.signature, report)


class _Scored(NamedTuple):
  value: float
  signature: str
  line: str


def _scored(
  metric: Metric, hypotheses: Sequence[str], references: Sequence[str]
) -> _Scored:
  score = metric.corpus_score(hypotheses, [references])
  # sacreBLEU knows the number of references only after scoring.
  signature = metric.get_signature().format()
  line = score.format(signature=signature)
  return _Scored(float(score.score), signature, line)


def bleu_for(language: str | Words) -> BLEU:
  """Return cased BLEU with the tokenizer of a language."""
  name = words_of(language).tokenizer
  try:
    return BLEU(tokenize=name)
  except (OSError, RuntimeError, ImportError, SystemExit) as error:
    raise InputError(
      f'the tokenizer {name} of sacreBLEU cannot be had: {first_line(error)}'
    ) from error


def metrics_for(language: str | Words) -> dict[str, Metric]:
  """Return all metrics for translations into a language."""
  words = words_of(language)
  ter = TER(normalized=words.asian, asian_support=words.asian)
  return {'BLEU': bleu_for(words), 'chrF2': CHRF(), 'TER': ter}


def signature_of(metric: Metric, references: int) -> Signature:
  """Return sacreBLEU's signature of a metric."""
  # sacreBLEU knows the number of references only after scoring.
  metric.corpus_score(['a'], [['a']] * references)
  return metric.get_signature()


def check_line_counts(hypotheses: int, references: int) -> None:
  """Refuse numbers of lines that cannot be compared line by line."""
  if hypotheses == 0 and references == 0:
    raise InputError('there are no lines to score')
  if hypotheses != references:
    raise InputError(
      f'{hypotheses:,} lines to score but {references:,} reference lines: '
      'line i of one must translate line i of the other'
    )
