"""Inputs of `compare.py` from its flags: texts, systems, options."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from fusion_jax.data.references import log_unreachable
from fusion_jax.errors import InputError
from fusion_jax.evaluation.buckets import read_bounds
from fusion_jax.evaluation.comparison import Options, Texts
from fusion_jax.evaluation.run_translations import Translated, translation_of
from fusion_jax.evaluation.systems import (
  NamedSystem,
  System,
  TextFile,
  baseline_first,
  check_lines,
  named_systems,
  read_file,
)
from fusion_jax.runs.directory import read_config, read_tokenizers


def options_of(arguments: argparse.Namespace) -> Options:
  """Return the options that the flags give."""
  return Options(
    arguments.samples,
    arguments.trials,
    read_bounds('--length_bounds', arguments.length_bounds),
    arguments.quantiles,
    arguments.examples,
  )


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
    for each in references:
      log_unreachable(each.lines, tokenizer, f'{path}, {each.path}')
  source_language, target_language = _languages(runs, languages)
  translated = {path: each.text for path, each in runs.items()}
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
  found = {read_config(Path(run)).decoding.bleu_tokenizer for run in runs}
  if len(found) > 1:
    raise InputError(
      f'the configs of {", ".join(runs)} name different tokenizers of BLEU; '
      'give --bleu_tokenizer'
    )
  return found.pop() if found else ''


def _languages(
  runs: dict[str, Translated], given: tuple[str, str]
) -> tuple[str, str]:
  """Return the languages of the runs, or of the flags if there are no runs."""
  found: dict[tuple[str, str], str] = {}
  for path, each in runs.items():
    found.setdefault((each.source_language, each.target_language), path)
  if len(found) > 1:
    listed = ', '.join(
      f'{path} from {source} to {target}'
      for (source, target), path in found.items()
    )
    raise InputError(f'the runs translate in different directions: {listed}')
  return next(iter(found), given)
