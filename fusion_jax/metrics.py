"""Corpus BLEU, chrF and TER as sacreBLEU computes them, by language.

Every score is reported together with its signature (Post 2018,
https://aclanthology.org/W18-6319).

A language code says what parts words and what counts them. It is of ISO 639
('zh', 'zho', 'cmn'), BCP 47 ('zh-Hant-TW'), FLORES and NLLB ('zho_Hans') or
OPUS ('zh_CN'). The script decides: that in the code, or the one that the
language is most often written in.
"""

import functools
import logging
from collections.abc import Sequence
from typing import NamedTuple

import langcodes
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric, Signature

from fusion_jax.errors import InputError, first_line

logger = logging.getLogger(__name__)


class Words(NamedTuple):
  """How a language is cut: sacreBLEU's tokenizer, and what is between words.

  With `asian`, TER knows each character as a word.
  """

  tokenizer: str
  between: str
  asian: bool = False


_SPACED = Words('13a', ' ')
# By the codes of ISO 15924. Those of sacreBLEU's tokenizers that need no
# download: Thai, Lao, Khmer and Burmese are counted by the character.
_SCRIPTS = {
  script: words
  for scripts, words in (
    ('Hans Hant Hani Hanb Bopo', Words('zh', '', True)),
    ('Jpan Hira Kana Hrkt', Words('ja-mecab', '', True)),
    ('Kore Hang Jamo', Words('ko-mecab', ' ')),
    ('Thai Laoo Khmr Mymr', Words('char', '')),
  )
  for script in scripts.split()
}


def words_of(language: str | Words, tokenizer: str = '') -> Words:
  """Return how a language is cut into words."""
  own = _of_code(language) if isinstance(language, str) else language
  return own._replace(tokenizer=tokenizer) if tokenizer else own


@functools.cache
def _of_code(code: str) -> Words:
  """Find the script of a code; an unknown code is logged once."""
  # Of a code that is not of BCP 47, like 'zh_classical', the language counts.
  for part in (code, code.replace('_', '-').split('-')[0]):
    try:
      tag = langcodes.Language.get(part)
    except ValueError:
      continue
    if tag.is_valid():
      return _SCRIPTS.get(tag.maximize().script or '', _SPACED)
  if code:
    logger.info(
      'language %r is unknown: its words have spaces between, and the '
      'tokenizer of BLEU is %s unless bleu_tokenizer names another',
      code,
      _SPACED.tokenizer,
    )
  return _SPACED


class Scores(NamedTuple):
  """BLEU (Papineni et al. 2002) and chrF (Popović 2015), from 0 to 100."""

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
  scores = []
  for metric in (bleu_for(target_language), CHRF()):
    score = metric.corpus_score(hypotheses, [references])
    # sacreBLEU knows the number of references only after scoring.
    signature = metric.get_signature().format()
    line = score.format(signature=signature)
    scores.append((float(score.score), signature, line))
  (bleu, bleu_signature, bleu_line), (chrf, chrf_signature, chrf_line) = scores
  report = f'{bleu_line}\n{chrf_line}'
  return Scores(bleu, chrf, bleu_signature, chrf_signature, report)


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
