"""Command that prepares a corpus: trains tokenizers, filters and encodes.

    fusion-jax prepare --config=NAME[:VARIANT]

The result is a folder as `data.prepared` describes it. Its name depends on
everything that the content depends on, so the same config over the same text
finds the folder again. The text is streamed, whatever its size.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusion_jax.config import DataConfig, TokenizerConfig
from fusion_jax.config.data import Direction
from fusion_jax.config.flags import parse_experiment
from fusion_jax.config.serialization import to_dict
from fusion_jax.data import corpora, filtering, prepared
from fusion_jax.data.building import CorpusWriter
from fusion_jax.data.encoding import ChunkEncoder, PairEncoder
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.data.texts import (
  Text,
  splits_of,
  tokenizer_pair_count,
  tokenizer_pairs,
)
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.data.tokenizer import train as train_tokenizer
from fusion_jax.data.workers import Workers, usable_cores
from fusion_jax.errors import InputError
from fusion_jax.files import whole_folder
from fusion_jax.json_files import sealed
from fusion_jax.progress import tell_how_long
from fusion_jax.startup import one_line_errors, run_program, start_logging


def report_table(report: dict[str, Any]) -> str:
  """Format the report of `PreparedCorpus` as a table for the log."""
  heads = ('pairs', 'kept', *filtering.REASONS)
  splits = dict(_rows(report))
  width = max(12, *map(len, splits))
  titles = [f'{"split":>{width}}', *(f'{head:>12}' for head in heads)]
  lines = ['  '.join(titles)]
  for name, split in splits.items():
    cells = [split['pairs'], split['kept'], *split['dropped'].values()]
    numbers = '  '.join(f'{cell:>12,}' for cell in cells)
    lines.append(f'{name:>{width}}  {numbers}')
  for name, split in report['splits'].items():
    kept = max(split['kept'], 1)
    means = [f'{subwords / kept:.1f}' for subwords in split['subwords']]
    shares = [
      f'{unknown / max(subwords, 1):.3%}'
      for unknown, subwords in zip(
        split['unknown'], split['subwords'], strict=True
      )
    ]
    lines.append(
      f'{name}: {" / ".join(means)} subwords a line (source / target), '
      f'{" / ".join(shares)} of them unknown'
    )
    if left := split['pairs'] - split['kept'] if name != 'train' else 0:
      lines.append(
        f'{name}: {left:,} of {split["pairs"]:,} pairs, empty or too long, are '
        'in no loss; all are translated, in parts where need be, and scored'
      )
  return '\n'.join(lines)


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
  """Yield every split, and each of its directions if there are several."""
  for name, split in report['splits'].items():
    yield name, split
    for direction, own in split.get('directions', {}).items():
      yield f'{name} {direction}', own


def summed(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """Add up the reports of one or more parts of a split."""
  reasons = reports[0]['dropped']
  return {
    **{
      count: sum(report[count] for report in reports)
      for count in ('pairs', 'kept')
    },
    'dropped': {
      reason: sum(report['dropped'][reason] for report in reports)
      for reason in reasons
    },
    **{
      sides: [
        sum(both)
        for both in zip(*(report[sides] for report in reports), strict=True)
      ]
      for sides in ('subwords', 'unknown')
    },
  }


logger = logging.getLogger(__name__)

# Increased when the same settings begin to give other files.
_FORMAT = 2
# Below this, starting processes takes longer than they save.
_PAIRS_FOR_PROCESSES = 50_000
# The process that reads and writes keeps no more than these busy.
_MOST_PROCESSES = 16


def prepare(data: DataConfig) -> PreparedCorpus:
  """Open the prepared corpus of a config, and make it if it does not exist."""
  settings = _settings(data)
  directory = Path(data.prepared) / _folder_name(data, settings)
  if directory.is_dir():
    logger.info('prepared corpus found: %s', directory)
  else:
    logger.info('preparing %s', directory)
    _make(data, settings, directory)
  return PreparedCorpus(directory)


def _settings(data: DataConfig) -> dict[str, Any]:
  """Return all that determines the content of the folder, as JSON values."""
  tokenizer = to_dict(data.tokenizer)
  for field in ('source_model', 'target_model'):
    if tokenizer[field]:
      path = Path(data.root, tokenizer[field])
      tokenizer[field] = Tokenizer.from_file(path).digest
  sampling = data.sampling
  return {
    'format': _FORMAT,
    **_text_settings(data),
    'tokenizer': tokenizer,
    'filter': to_dict(data.filter),
    'sampling': [sampling.source_alpha, sampling.target_alpha],
  }


def _text_settings(data: DataConfig) -> dict[str, Any]:
  for number, direction in enumerate(data.all_directions):
    _check_files(data, direction, number)
  directions = [_direction_settings(data, d) for d in data.all_directions]
  if not data.directions:
    return directions[0]
  weights = [direction.weight for direction in data.directions]
  trained = not data.tokenizer.source_model
  return {
    'directions': directions,
    'mixing': [weights, data.mixing_temperature] if trained else [],
  }


def _check_files(data: DataConfig, direction: Direction, number: int) -> None:
  own = data.between(direction.source_language, direction.target_language)
  section = f'data.directions.{number}' if data.directions else 'data'
  for name, corpora_of_split in splits_of(direction).items():
    for corpus in corpora_of_split:
      corpora.check_files(corpus, own, f'{section}.{name}')


def _direction_settings(
  data: DataConfig, direction: Direction
) -> dict[str, Any]:
  languages = direction.source_language, direction.target_language
  own = data.between(*languages)
  tags = list(data.tags(*languages))
  return {
    'languages': list(languages),
    'splits': {
      name: [corpora.fingerprint(corpus, own) for corpus in names]
      for name, names in splits_of(direction).items()
    },
    # Without tags the key is left out, so that folders keep their old names.
    **({'tags': tags} if tags else {}),
  }


def _folder_name(data: DataConfig, settings: dict[str, Any]) -> str:
  canonical = json.dumps(settings, sort_keys=True, ensure_ascii=False)
  digest = hashlib.sha256(canonical.encode()).hexdigest()[:16]
  tokenizer = data.tokenizer
  kind = f'{tokenizer.algorithm}{tokenizer.vocabulary_size}'
  if tokenizer.source_model:
    kind = Path(tokenizer.source_model).stem
  names = [direction.name for direction in data.all_directions]
  languages = names[0] if len(names) == 1 else f'{len(names)}-directions'
  return f'{languages}-{kind}-{digest}'


def _make(data: DataConfig, settings: dict[str, Any], directory: Path) -> None:
  """Fill a folder that appears only when it is complete."""
  try:
    with whole_folder(directory) as partial:
      report = _fill(data, partial)
      _write_json(partial / prepared.SETTINGS, settings)
      report['files'] = prepared.file_digests(partial)
      _write_json(partial / prepared.REPORT, sealed(report))
  except InputError:
    # Another process may have made the same folder in the meantime.
    if not (directory / prepared.REPORT).is_file():
      raise
    return
  logger.info('%s:\n%s', directory, report_table(report))


def _fill(data: DataConfig, directory: Path) -> dict[str, Any]:
  texts = [Text(data, direction) for direction in data.all_directions]
  tokenizers = _tokenizers(data, texts)
  for name, tokenizer in zip(
    (prepared.SOURCE_MODEL, prepared.TARGET_MODEL), tokenizers, strict=True
  ):
    (directory / name).write_bytes(tokenizer.model)
  source, target = tokenizers
  alphas = data.sampling.source_alpha, data.sampling.target_alpha
  encoders = {
    text.direction.name: PairEncoder((source.tagged(text.tags), target), alphas)
    for text in texts
  }
  encoder = ChunkEncoder(encoders, data.filter)
  with Workers(encoder, _process_count(texts)) as workers:
    splits = _write_splits(texts, CorpusWriter(directory, workers))
  if not data.directions:
    for split in splits.values():
      del split['directions']
  return {
    'tokenizers': [tokenizer.digest for tokenizer in tokenizers],
    'splits': splits,
  }


def _process_count(texts: Sequence[Text]) -> int:
  """Return how many processes encode: one where starting others is slower."""
  pairs = sum(sum(text.totals.values()) for text in texts)
  if pairs < _PAIRS_FOR_PROCESSES:
    return 1
  return min(usable_cores(), _MOST_PROCESSES)


def _write_splits(
  texts: Sequence[Text], writer: CorpusWriter
) -> dict[str, dict[str, Any]]:
  """Write all splits; return their reports, with those of their directions."""
  splits = {}
  for name in ('train', 'valid', 'test'):
    parts = [text for text in texts if name in text.totals]
    if not parts:
      continue
    if name == 'train':
      reports = writer.write_train(parts)
    else:
      reports = writer.write_held_out(name, parts)
    names = [text.direction.name for text in parts]
    directions = dict(zip(names, reports, strict=True))
    splits[name] = summed(reports) | {'directions': directions}
    _check_not_empty(name, splits[name])
  return splits


def _check_not_empty(name: str, report: Mapping[str, Any]) -> None:
  for direction, own in report['directions'].items():
    if own['kept']:
      continue
    reasons = ', '.join(
      f'{count:,} {reason}' for reason, count in own['dropped'].items() if count
    )
    raise InputError(
      f'config.data.{name}: no pair of {direction} is left of '
      f'{own["pairs"]:,} ({reasons}); see config.data.filter'
    )


def _tokenizers(
  data: DataConfig, texts: list[Text]
) -> tuple[Tokenizer, Tokenizer]:
  config = data.tokenizer
  if config.source_model:
    source = Tokenizer.from_file(Path(data.root, config.source_model))
    target_model = config.target_model or config.source_model
    return source, Tokenizer.from_file(Path(data.root, target_model))
  pairs = functools.partial(tokenizer_pairs, data, texts)
  count = tokenizer_pair_count(data, texts)
  tags = data.all_tags
  if config.joint:
    both = (line for pair in pairs() for line in pair)
    tokenizer = _trained('joint', both, 2 * count, config, tags)
    return tokenizer, tokenizer

  def of(side: int) -> Tokenizer:
    lines = (pair[side] for pair in pairs())
    own = () if side else tags
    return _trained(('source', 'target')[side], lines, count, config, own)

  # SentencePiece works on few cores for most of the time.
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    source, target = pool.map(of, range(2))
  return source, target


def _trained(
  name: str,
  lines: Iterable[str],
  count: int,
  config: TokenizerConfig,
  tags: tuple[str, ...] = (),
) -> Tokenizer:
  work = f'training the {name} tokenizer'
  logger.info(
      '%s: %s, %s pieces, %s lines',
      work, config.algorithm, f'{config.vocabulary_size:,}', f'{count:,}',
  )  # fmt: skip
  with tell_how_long(work):
    return Tokenizer(train_tokenizer(filter(None, lines), config, tags))


def _write_json(path: Path, values: dict[str, Any]) -> None:
  text = json.dumps(values, indent=2, ensure_ascii=False) + '\n'
  path.write_text(text, 'utf-8')


@one_line_errors
def main(argv: list[str]) -> None:
  """Prepare the corpus of a config and print its folder."""
  start_logging()
  parser = argparse.ArgumentParser(
    prog='fusion-jax prepare',
    description='Prepare the corpus of a config; print its folder.',
  )
  config, _ = parse_experiment(argv, parser)
  print(prepare(config.data).directory)


if __name__ == '__main__':
  run_program(main)
