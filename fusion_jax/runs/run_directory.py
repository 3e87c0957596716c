"""The run directory: config, tokenizers, checkpoints and logs.

DIR/config.json           the experiment's config, and the format of all this
DIR/source.model          SentencePiece model of the source side
DIR/target.model          of the target side (the same file if joint)
DIR/corpus/               counts of the corpus and the validation text, see
                          kept_corpus.py
DIR/checkpoints/STEP/     Orbax checkpoints
DIR/lock                  held while a training runs, see lock.py
DIR/metrics.jsonl         one JSON object a line: training and validation
DIR/events.out.tfevents*  the same for TensorBoard
DIR/wandb_id              name of the run on Weights & Biases, if it has one
DIR/translations/STEP.txt validation translations; STEP.DIRECTION.txt in a run
                          with several directions
"""

import os
from pathlib import Path

from fusion_jax.config import ExperimentConfig, serialization
from fusion_jax.data.tokenizer import Tokenizer
from fusion_jax.errors import InputError
from fusion_jax.files import check_regular, write_errors, write_whole
from fusion_jax.runs.lock import NAME as LOCK


def read_config(workdir: Path) -> ExperimentConfig:
  """Read the config of a run directory.

  Raises:
    InputError: There is no run directory, a newer version wrote it, or its
      config cannot be read.
  """
  path = workdir / 'config.json'
  if not path.exists():
    raise InputError(
      f'{workdir}: not a run directory: it has no config.json; '
      'give the --workdir of a training run'
    )
  return serialization.from_json(path)


def read_tokenizers(workdir: Path) -> tuple[Tokenizer, Tokenizer]:
  """Read the source and the target tokenizer of a run directory."""
  paths = [workdir / 'source.model', workdir / 'target.model']
  for path in paths:
    if not path.exists():
      raise InputError(f'{path}: missing; training writes it into the run')
  return Tokenizer.from_file(paths[0]), Tokenizer.from_file(paths[1])


# Files and folders that belong to the run itself; `events` is a beginning.
_OWN = (
  'config.json',
  'source.model',
  'target.model',
  'corpus',
  'checkpoints',
  'damaged',
  'heartbeat',
  LOCK,
  'metrics.jsonl',
  'wandb_id',
  'translations',
)
_EVENTS = 'events.out.tfevents'
# What a start leaves that ends before config.json is written.
_BEFORE_CONFIG = {LOCK, 'source.model', 'target.model'}


def check_output(path: str | Path, flag: str = '--output') -> None:
  """Refuse to write what belongs to a run.

  Args:
    path: File or folder to write; '' for none.
    flag: Command-line option that named it, for the message.

  Raises:
    InputError: It is a run directory's own file or folder, or is inside of one.
  """
  if not path:
    return
  final = Path(os.path.realpath(path))
  for folder in final.parents:
    name = final.relative_to(folder).parts[0]
    is_own = name in _OWN or name.startswith(_EVENTS)
    if is_own and _is_run(folder):
      raise InputError(
        f'{flag}={path}: {name} belongs to the run {folder}; give another'
      )


def _is_run(folder: Path) -> bool:
  return (folder / 'config.json').exists() and any(
    (folder / name).exists() for name in ('source.model', 'checkpoints')
  )


def _check_same(workdir: Path, given: ExperimentConfig) -> None:
  saved = read_config(workdir)
  names = serialization.differing_fields(saved, given)
  if names:
    old, new = serialization.flatten(saved), serialization.flatten(given)
    listed = ', '.join(
      f'{name} ({old.get(name)!r} there, {new.get(name)!r} given)'
      for name in names
    )
    raise InputError(
      f'{workdir} belongs to a run with another config: {listed}; '
      'choose another --workdir or give the same values; a resumed run may '
      f'change {serialization.resumable_fields(given)}'
    )


def check(workdir: Path, config: ExperimentConfig) -> None:
  """Refuse a directory that this config must not train in.

  Raises:
    InputError: It is a file, or it holds another run or something else.
  """
  if workdir.exists() and not workdir.is_dir():
    raise InputError(f'{workdir}: --workdir must be a directory')
  if (workdir / 'config.json').exists():
    _check_same(workdir, config)
  elif workdir.is_dir() and set(os.listdir(workdir)) - _BEFORE_CONFIG:
    raise InputError(
      f'{workdir}: not empty and not a run directory; '
      'choose a new or empty --workdir'
    )


def create(
  workdir: Path,
  config: ExperimentConfig,
  source: Tokenizer,
  target: Tokenizer,
) -> None:
  """Write the files that decoding needs beside checkpoints; config.json last.

  Raises:
    InputError: The directory belongs to another tokenizer or cannot be written.
  """
  with write_errors(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
  for name, tokenizer in (('source', source), ('target', target)):
    path = workdir / f'{name}.model'
    check_regular(path)
    if not path.exists():
      write_whole(path, tokenizer.model)
    elif path.read_bytes() != tokenizer.model:
      raise InputError(
        f'{path}: not the tokenizer of the prepared corpus; the run was '
        'trained on other text or its tokenizer was replaced'
      )
  write_whole(workdir / 'config.json', serialization.to_json(config).encode())
