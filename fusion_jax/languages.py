"""What a language code says of words: what parts them and what counts them.

A code is of ISO 639 ('zh', 'zho', 'cmn'), BCP 47 ('zh-Hant-TW'), FLORES and
NLLB ('zho_Hans') or OPUS ('zh_CN'). The script decides: that in the code, or
the one that the language is most often written in.
"""

import functools
import logging
from typing import NamedTuple

import langcodes

logger = logging.getLogger(__name__)


class Words(NamedTuple):
  """How a language is cut into words.

  Attributes:
    tokenizer: Name that sacreBLEU gives the tokenizer of its BLEU.
    between: Text between two words: a space or nothing.
    asian: Whether sacreBLEU's TER knows each character as a word.
  """

  tokenizer: str
  between: str
  asian: bool = False


_SPACED = Words('13a', ' ')
# By the codes of ISO 15924. Those of sacreBLEU's tokenizers that need no
# download: Thai, Lao, Khmer and Burmese are counted by the character.
_SCRIPTS = {
  **dict.fromkeys(
    ('Hans', 'Hant', 'Hani', 'Hanb', 'Bopo'), Words('zh', '', True)
  ),
  **dict.fromkeys(
    ('Jpan', 'Hira', 'Kana', 'Hrkt'), Words('ja-mecab', '', True)
  ),
  **dict.fromkeys(('Kore', 'Hang', 'Jamo'), Words('ko-mecab', ' ')),
  **dict.fromkeys(('Thai', 'Laoo', 'Khmr', 'Mymr'), Words('char', '')),
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
