"""Systems to compare: files of translations, or run directories.

A run directory translates the source by its own decoding settings, once: the
translations and what they were made of lie in the folder of the comparison.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusion_jax.cli.text_io import open_input, read_lines, split_paths
from fusion_jax.data.tokenizer import log_unreachable
from fusion_jax.errors import InputError
from fusion_jax.files import read_json, write_errors, write_whole
from fusion_jax.metrics import Words, words_of
from fusion_jax.runs.directory import read_config, read_tokenizers

if TYPE_CHECKING:
  from fusion_jax.runs.loading import TrainedModel

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TextFile:
  """The lines of a file, without trailing white space as sacreBLEU reads them.

  Attributes:
    run: Run directory and step that made the lines; '' if unknown.
    languages: Source and target language of that run.
  """

  path: str
  lines: tuple[str, ...]
  run: str = ''
  languages: tuple[str, str] = ('', '')


@dataclasses.dataclass(frozen=True)
class Texts:
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


def read_texts(arguments: argparse.Namespace) -> Texts:
  """Read all files, then translate with the run directories."""
  systems = _baseline_first(_systems(arguments.system), arguments.baseline)
  paths = [path for seeds in systems.values() for path in seeds]
  runs = list(filter(_is_run, paths))
  source = read_file(arguments.source)
  references = tuple(map(read_file, arguments.reference))
  texts = {path: read_file(path) for path in paths if path not in runs}
  check_lines(source, [*references, *texts.values()])
  train = arguments.train_target
  train_target = read_file(train) if train else None
  languages = arguments.source_language, arguments.target_language
  folder = arguments.output / 'translations'
  with write_errors(arguments.output):
    (folder if runs else arguments.output).mkdir(parents=True, exist_ok=True)
  for name, seeds in systems.items():
    for seed, path in enumerate(seeds, start=1):
      if path in runs:
        file = folder / f'{name}.{seed}.txt'
        texts[path] = translation_of(path, source.lines, languages, file)
        _log_unreachable(path, references)
  translated = {path: texts[path] for path in runs}
  languages = _languages(translated) if runs else languages
  # Translations from an earlier comparison may have been edited since.
  check_lines(source, list(translated.values()))
  return Texts(
    source,
    references,
    {
      name: tuple(texts[path] for path in seeds)
      for name, seeds in systems.items()
    },
    languages,
    train_target,
    arguments.bleu_tokenizer or _bleu_tokenizer(runs),
  )


def _systems(flags: Sequence[str]) -> dict[str, tuple[str, ...]]:
  """Read `NAME=PATH[,PATH]` of each --system."""
  if not flags:
    raise InputError('no system to compare: give --system NAME=FILE[,FILE]')
  systems: dict[str, tuple[str, ...]] = {}
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
    systems[name] = paths
  return systems


def _baseline_first(
  systems: dict[str, tuple[str, ...]], baseline: str
) -> dict[str, tuple[str, ...]]:
  if not baseline:
    return systems
  if baseline not in systems:
    raise InputError(
      f'--baseline={baseline}: no such system; there are {", ".join(systems)}'
    )
  return {baseline: systems[baseline]} | systems


def _is_run(path: str) -> bool:
  return Path(path).is_dir()


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


def _log_unreachable(run: str, references: Sequence[TextFile]) -> None:
  _, tokenizer = read_tokenizers(Path(run))
  for text in references:
    log_unreachable(text.lines, tokenizer, f'{run}, {text.path}')


def _bleu_tokenizer(runs: Sequence[str]) -> str:
  """Return the tokenizer that the configs of the runs name, '' for none."""
  names = {read_config(Path(run)).decoding.bleu_tokenizer for run in runs}
  if len(names) > 1:
    raise InputError(
      f'the configs of {", ".join(runs)} name different tokenizers of BLEU; '
      'give --bleu_tokenizer'
    )
  return names.pop() if names else ''


def _languages(runs: Mapping[str, TextFile]) -> tuple[str, str]:
  directions = {text.languages: path for path, text in runs.items()}
  if len(directions) > 1:
    listed = ', '.join(
      f'{path} from {source} to {target}'
      for (source, target), path in directions.items()
    )
    raise InputError(f'the runs translate in different directions: {listed}')
  return next(iter(directions))


def translation_of(
  run: str, lines: Sequence[str], languages: tuple[str, str], path: Path
) -> TextFile:
  """Translate with the run's own decoding settings, or read a kept result.

  A `.json` file beside the translations records what they were made from. They
  are kept while the run's config, its checkpoints and the text stay the same.
  """
  made_of = _made_of(Path(run), lines, languages)
  about = path.with_suffix('.json')
  record: dict[str, Any] = {}
  with contextlib.suppress(InputError):
    record = read_json(about, dict[str, Any])
  if record.get('made_of') == made_of and path.is_file():
    logger.info('%s: translated before: %s', run, path)
  else:
    about.unlink(missing_ok=True)
    record = {'made_of': made_of, **_translate(run, lines, languages, path)}
    write_whole(about, (json.dumps(record, indent=1) + '\n').encode())
  return dataclasses.replace(
    read_file(str(path)),
    run=f'{run}, step {record["step"]}',
    languages=(record['source_language'], record['target_language']),
  )


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


def _translate(
  run: str, lines: Sequence[str], languages: tuple[str, str], path: Path
) -> dict[str, Any]:
  """Write the translation, and return the step and the direction."""
  # Imported only where it is needed, because JAX loads slowly.
  from fusion_jax.decoding.ensemble import in_direction
  from fusion_jax.runs.loading import load_run

  model = in_direction(load_run(run), run, *languages)
  logger.info('%s, step %d: translates %d lines', run, model.step, len(lines))
  text = ''.join(f'{line}\n' for line in translate(model, lines))
  write_whole(path, text.encode())
  data = model.config.data
  return {
    'step': model.step,
    'source_language': data.source_language,
    'target_language': data.target_language,
  }


def translate(run: 'TrainedModel', lines: Sequence[str]) -> list[str]:
  """Translate with the search of the run's config, and log the progress."""
  from fusion_jax.decoding.translate import Translator
  from fusion_jax.startup import Progress

  progress = Progress(len(lines), 'lines')
  translator = Translator(run, run.config.decoding, on_progress=progress.add)
  translations = list(translator.translate(lines))
  progress.finish()
  return translations
