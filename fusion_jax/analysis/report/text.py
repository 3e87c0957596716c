"""The translation of a run's text, kept in the run directory."""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from fusion_jax.analysis.run_with_text import RunWithText
from fusion_jax.config.serialization import to_dict
from fusion_jax.decoding.translate import Translator
from fusion_jax.errors import InputError
from fusion_jax.files import write_whole
from fusion_jax.json_input import read_json
from fusion_jax.progress import Progress
from fusion_jax.runs.loading import TrainedModel

logger = logging.getLogger(__name__)


def translation(subject: RunWithText, folder: Path) -> list[str]:
  """Translate the text line by line with the search of the run's config.

  The translation is written into the folder, and read from there the next time
  if parameters, decoding and text are the same.

  Args:
    subject: Run and text to translate.
    folder: Existing folder for the translation.

  Returns:
    A translation of each of `subject.lines`.

  Raises:
    InputError: The folder cannot be written.
  """
  sources = [source for source, _ in subject.lines]
  key = _key(subject.run, sources)
  path = folder / f'translation-{key[:12]}.json'
  kept = _read(path, key, len(sources))
  if kept is not None:
    logger.info('translation found: %s', path)
    return kept
  progress = Progress(len(sources), 'sentences')
  options = subject.run.config.decoding
  translator = Translator(subject.run, options, on_progress=progress.add)
  lines = list(translator.translate(sources))
  progress.finish()
  written = {'key': key, 'step': subject.run.step, 'translations': lines}
  text = json.dumps(written, ensure_ascii=False, indent=1)
  write_whole(path, text.encode() + b'\n')
  return lines


def _key(run: TrainedModel, sources: Sequence[str]) -> str:
  """Return a digest of everything that a translation depends on."""
  data = run.config.data
  digest = hashlib.sha256()
  about = {
    'decoding': to_dict(run.config.decoding),
    'model': to_dict(run.config.model),
    'languages': [data.source_language, data.target_language],
    'tokenizers': [run.source_tokenizer.digest, run.target_tokenizer.digest],
    'sources': list(sources),
  }
  digest.update(json.dumps(about, sort_keys=True).encode())
  for leaf in jax.tree.leaves(run.parameters):
    digest.update(np.asarray(leaf).tobytes())
  return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class _Translated:
  key: str
  translations: list[str]


def _read(path: Path, key: str, lines: int) -> list[str] | None:
  """Return the kept translation, or None if there is none with this key."""
  try:
    kept = read_json(path, _Translated)
  except InputError:
    return None
  found = kept['translations']
  return found if kept['key'] == key and len(found) == lines else None
