"""Translations of a text by run directories, computed once and kept."""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusion_jax.errors import InputError
from fusion_jax.evaluation.systems import TextFile, read_file
from fusion_jax.files import write_whole
from fusion_jax.json_input import read_json
from fusion_jax.runs.directory import read_config

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Translated:
  """A run's translation of a text.

  Attributes:
    text: Translations.
    source_language: Source language of the direction.
    target_language: Target language of the direction.
  """

  text: TextFile
  source_language: str
  target_language: str


def translation_of(
  run: str, lines: Sequence[str], languages: tuple[str, str], path: Path
) -> Translated:
  """Translate with the run's own decoding settings, or read a kept result.

  A `.json` file beside the translations records what they were made from. They
  are kept while the run's config, its checkpoints and the text stay the same.
  """
  made_of = _made_of(Path(run), lines, languages)
  about = path.with_suffix('.json')
  kept = _read(about)
  if kept.get('made_of') == made_of and path.is_file():
    logger.info('%s: translated before: %s', run, path)
  else:
    about.unlink(missing_ok=True)
    kept = {'made_of': made_of} | _translate(run, lines, languages, path)
    write_whole(about, (json.dumps(kept, indent=1) + '\n').encode())
  text = dataclasses.replace(
    read_file(str(path)), run=f'{run}, step {kept["step"]}'
  )
  return Translated(text, kept['source_language'], kept['target_language'])


def _made_of(
  run: Path, lines: Sequence[str], languages: tuple[str, str]
) -> dict[str, Any]:
  read_config(run)
  checkpoints = run / 'checkpoints'
  if not checkpoints.is_dir():
    raise InputError(f'{checkpoints}: no checkpoint yet; train first')
  return {
    'run': str(run),
    'config': _hash((run / 'config.json').read_bytes()),
    'checkpoints': sorted(each.name for each in checkpoints.iterdir()),
    'source': _hash('\n'.join(lines).encode()),
    'languages': list(languages),
  }


def _hash(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()


@dataclasses.dataclass(frozen=True)
class _Kept:
  step: int
  source_language: str
  target_language: str
  made_of: dict[str, Any]


def _read(about: Path) -> dict[str, Any]:
  try:
    return read_json(about, _Kept)
  except InputError:
    return {}


def _translate(
  run: str, lines: Sequence[str], languages: tuple[str, str], path: Path
) -> dict[str, Any]:
  # Imported only where it is needed, because JAX loads slowly.
  from fusion_jax.decoding.ensemble import in_direction
  from fusion_jax.decoding.translate import Translator
  from fusion_jax.progress import Progress
  from fusion_jax.runs.loading import load_run

  trained = in_direction(load_run(run), run, *languages)
  progress = Progress(len(lines), 'lines')
  translator = Translator(
    trained, trained.config.decoding, on_progress=progress.add
  )
  logger.info('%s, step %d: translates %d lines', run, trained.step, len(lines))
  text = ''.join(f'{line}\n' for line in translator.translate(lines))
  progress.finish()
  write_whole(path, text.encode())
  data = trained.config.data
  return {
    'step': trained.step,
    'source_language': data.source_language,
    'target_language': data.target_language,
  }
