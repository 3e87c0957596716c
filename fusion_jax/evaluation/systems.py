"""Systems to compare: files of translations, or run directories.

A run directory translates the source by its own decoding settings, once: the
translations and what they were made of lie in the folder of the comparison.
"""

import argparse
import dataclasses
import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusion_jax.cli.text_io import open_input, read_lines, split_paths
from fusion_jax.data.tokenizer import log_unreachable
from fusion_jax.errors import InputError
from fusion_jax.files import write_whole
from fusion_jax.json_files import read_json
from fusion_jax.languages import Words, words_of
from fusion_jax.runs.directory import read_config, read_tokenizers

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TextFile:
  """The lines of a file, without trailing white space as sacreBLEU reads them.

  Attributes:
    run: Run directory and step that made the lines; '' if unknown.
  """

  path: str
  lines: tuple[str, ...]
  run: str = ''


@dataclasses.dataclass(frozen=True)
class NamedSystem:
  """A system by its name, with a file or a run directory for each seed."""

  name: str
  paths: tuple[str, ...]

  @property
  def runs(self) -> list[str]:
    """The paths that are run directories."""
    return [path for path in self.paths if Path(path).is_dir()]


@dataclasses.dataclass(frozen=True)
class System:
  """A system with a file of translations for each seed."""

  name: str
  outputs: tuple[TextFile, ...]


def named_systems(flags: Sequence[str]) -> list[NamedSystem]:
  """Read `NAME=PATH[,PATH]` of each --system."""
  if not flags:
    raise InputError('no system to compare: give --system NAME=FILE[,FILE]')
  systems: dict[str, NamedSystem] = {}
  for flag in flags:
    name, _, listed = flag.partition('=')
    paths = tuple(split_paths(listed))
    if not (name and all(paths)) or '/' in name:
      raise InputError(
        f'--system {flag}: must be NAME=FILE[,FILE], the name without /'
      )
    if name in systems:
      raise InputError(
        f'--system {flag}: there is a system {name} already; files of other '
        f'seeds go into one flag: {name}=FILE,FILE'
      )
    for path in paths:
      if paths.count(path) > 1:
        raise InputError(f'--system {flag}: {path} is given twice')
    systems[name] = NamedSystem(name, paths)
  return list(systems.values())


def baseline_first(
  systems: Sequence[NamedSystem], baseline: str
) -> list[NamedSystem]:
  """Put the baseline first and keep the order of the other systems."""
  names = [system.name for system in systems]
  if baseline and baseline not in names:
    raise InputError(
      f'--baseline={baseline}: no such system; there are {", ".join(names)}'
    )
  first = baseline or names[0]
  return sorted(systems, key=lambda system: system.name != first)


def read_file(path: str) -> TextFile:
  """Read a text."""
  with open_input(path) as file:
    lines = tuple(line.rstrip() for line in read_lines(file, path))
  if not lines:
    raise InputError(f'{path}: the file is empty')
  return TextFile(path, lines)


def check_lines(source: TextFile, others: Sequence[TextFile]) -> None:
  """Refuse files that do not match the source line by line."""
  for other in others:
    if len(other.lines) != len(source.lines):
      raise InputError(
        f'{other.path} has {len(other.lines):,} lines but {source.path} has '
        f'{len(source.lines):,}: line i of one must translate line i of the '
        'other'
      )


@dataclasses.dataclass(frozen=True)
class Translated:
  """A run's translation of a text, and its direction."""

  text: TextFile
  source_language: str
  target_language: str


@dataclasses.dataclass(frozen=True)
class Texts:
  """Texts to compare.

  Attributes:
    systems: Systems, the baseline first.
    source_language, target_language: They decide what a word is; '' for 13a's.
    train_target: Text in which word frequencies are counted; None for the first
      reference.
    bleu_tokenizer: BLEU's tokenizer, as in `DecodingConfig`.
  """

  source: TextFile
  references: tuple[TextFile, ...]
  systems: tuple[System, ...]
  source_language: str = ''
  target_language: str = ''
  train_target: TextFile | None = None
  bleu_tokenizer: str = ''

  @property
  def target_words(self) -> Words:
    """How references and translations are cut into words."""
    return words_of(self.target_language, self.bleu_tokenizer)


def read_texts(arguments: argparse.Namespace) -> Texts:
  """Read all files, then translate with the run directories."""
  systems = baseline_first(named_systems(arguments.system), arguments.baseline)
  source = read_file(arguments.source)
  references = [read_file(path) for path in arguments.reference]
  files = _read_files(systems)
  check_lines(source, [*references, *files.values()])
  train = arguments.train_target
  train_target = read_file(train) if train else None
  folder = arguments.output / 'translations'
  _make(folder if any(system.runs for system in systems) else arguments.output)
  languages = arguments.source_language, arguments.target_language
  runs = _translate(systems, source, languages, folder)
  for path in runs:
    _, tokenizer = read_tokenizers(Path(path))
    for text in references:
      log_unreachable(text.lines, tokenizer, f'{path}, {text.path}')
  source_language, target_language = _languages(runs, languages)
  translated = {path: run.text for path, run in runs.items()}
  # Translations from an earlier comparison may have been edited since.
  check_lines(source, list(translated.values()))
  texts = files | translated
  return Texts(
    source,
    tuple(references),
    tuple(
      System(system.name, tuple(texts[path] for path in system.paths))
      for system in systems
    ),
    source_language,
    target_language,
    train_target,
    arguments.bleu_tokenizer or _bleu_tokenizer(list(runs)),
  )


def _read_files(systems: Sequence[NamedSystem]) -> dict[str, TextFile]:
  return {
    path: read_file(path)
    for system in systems
    for path in system.paths
    if path not in system.runs
  }


def _make(folder: Path) -> None:
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise InputError(f'{folder}: cannot be made: {error.strerror}') from None


def _translate(
  systems: Sequence[NamedSystem],
  source: TextFile,
  languages: tuple[str, str],
  folder: Path,
) -> dict[str, Translated]:
  """Translate with each run directory, into files named by system and seed."""
  return {
    path: translation_of(
      path, source.lines, languages, folder / f'{system.name}.{seed}.txt'
    )
    for system in systems
    for seed, path in enumerate(system.paths, start=1)
    if path in system.runs
  }


def _bleu_tokenizer(runs: Sequence[str]) -> str:
  """Return the tokenizer that the configs of the runs name, '' for none."""
  names = {read_config(Path(run)).decoding.bleu_tokenizer for run in runs}
  if len(names) > 1:
    raise InputError(
      f'the configs of {", ".join(runs)} name different tokenizers of BLEU; '
      'give --bleu_tokenizer'
    )
  return names.pop() if names else ''


def _languages(
  runs: dict[str, Translated], given: tuple[str, str]
) -> tuple[str, str]:
  """Return the languages of the runs, or of the flags if there are no runs."""
  directions: dict[tuple[str, str], str] = {}
  for path, run in runs.items():
    directions.setdefault((run.source_language, run.target_language), path)
  if len(directions) > 1:
    listed = ', '.join(
      f'{path} from {source} to {target}'
      for (source, target), path in directions.items()
    )
    raise InputError(f'the runs translate in different directions: {listed}')
  return next(iter(directions), given)


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
    kept = {'made_of': made_of} | _translate_lines(run, lines, languages, path)
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
    'checkpoints': sorted(step.name for step in checkpoints.iterdir()),
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


def _translate_lines(
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
