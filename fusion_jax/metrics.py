"""Corpus BLEU, chrF and TER as sacreBLEU computes them.

A score is a number together with its signature (Post 2018,
https://aclanthology.org/W18-6319).
"""

import dataclasses
from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric, Signature

from fusion_jax.errors import InputError

# Languages whose words are not separated by spaces. sacreBLEU's default, 13a,
# serves all others.
_TOKENIZERS = {'zh': 'zh', 'ja': 'ja-mecab'}


@dataclasses.dataclass(frozen=True)
class Scores:
  """BLEU (Papineni et al. 2002) and chrF (Popović 2015), from 0 to 100.

  Attributes:
    bleu: cased, on detokenised text.
    chrf: chrF2.
    bleu_signature: how sacreBLEU computed `bleu`.
    chrf_signature: how sacreBLEU computed `chrf`.
    report: both, as sacreBLEU prints them, one line each.
  """

  bleu: float
  chrf: float
  bleu_signature: str
  chrf_signature: str
  report: str


def corpus_scores(
  hypotheses: Sequence[str],
  references: Sequence[str],
  target_language: str,
) -> Scores:
  """Scores translations against one reference each.

  Args:
    hypotheses: detokenised translations.
    references: detokenised references.
    target_language: its code; decides BLEU's tokenizer.

  Returns:
    The scores.

  Raises:
    InputError: no lines, or different numbers of lines.
  """
  check_line_counts(len(hypotheses), len(references))
  scores, signatures, lines = [], [], []
  for metric in (bleu_for(target_language), CHRF()):
    score = metric.corpus_score(hypotheses, [references])
    # sacreBLEU knows the number of references only after scoring.
    signature = metric.get_signature().format()
    scores.append(float(score.score))
    signatures.append(signature)
    lines.append(score.format(signature=signature))
  return Scores(*scores, *signatures, report='\n'.join(lines))


def bleu_for(language: str) -> BLEU:
  """Cased BLEU with the tokenizer of a language; '': 13a.

  Args:
    language: its code; its script or region changes nothing.

  Returns:
    The metric; its `tokenizer` parts a line into words with spaces between.
  """
  return BLEU(tokenize=_TOKENIZERS.get(language_of(language), '13a'))


def metrics_for(language: str) -> dict[str, Metric]:
  """All metrics for translations into a language.

  Args:
    language: its code, as for `bleu_for`. TER (Snover et al. 2006) takes each
      character as a word where words are not separated by spaces.

  Returns:
    By sacreBLEU's names: 'BLEU', 'chrF2' and 'TER'.
  """
  spaced = language_of(language) not in _TOKENIZERS
  ter = TER(normalized=not spaced, asian_support=not spaced)
  return {'BLEU': bleu_for(language), 'chrF2': CHRF(), 'TER': ter}


def signature_of(metric: Metric, references: int) -> Signature:
  """Return how sacreBLEU computes a metric.

  Args:
    metric: Metric that may not have scored anything yet.
    references: Number of translations of every line.

  Returns:
    sacreBLEU's signature.
  """
  # sacreBLEU knows the number of references only after scoring.
  metric.corpus_score(['a'], [['a']] * references)
  return metric.get_signature()


def check_line_counts(hypotheses: int, references: int) -> None:
  """Refuses what cannot be compared line by line."""
  if hypotheses == 0 and references == 0:
    raise InputError('there are no lines to score')
  if hypotheses != references:
    raise InputError(
      f'{hypotheses:,} lines to score but {references:,} reference lines: '
      'line i of one must translate line i of the other'
    )


def language_of(code: str) -> str:
  """The language of a code that may name script or region: zh of zh_CN."""
  return code.replace('_', '-').split('-')[0].lower()
