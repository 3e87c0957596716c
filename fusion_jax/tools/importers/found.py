"""What an importer finds in the files of another program."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fusion_jax.config import (
  DataConfig,
  DecodingConfig,
  ExperimentConfig,
  ModelConfig,
  TokenizerConfig,
)
from fusion_jax.errors import InputError
from fusion_jax.tools.importers.vocabularies import Sides
from fusion_jax.tools.importers.weights import Weights


class Request(NamedTuple):
  """What the user asks to import.

  Attributes:
    input: Folder of the other program.
    output: Run directory to write.
    source_language, target_language: Language codes; empty: those that the
      files name.
    source_spm, target_spm: SentencePiece models that are not in the folder, if
      any.
  """

  input: Path
  output: Path
  source_language: str = ''
  target_language: str = ''
  source_spm: Path | None = None
  target_spm: Path | None = None

  def languages(self, name: Path, source: str, target: str) -> tuple[str, str]:
    """Return the languages that the user gives, or those of the files."""
    source = self.source_language or source
    target = self.target_language or target
    if not (source and target):
      raise InputError(
        f'{name}: does not name its languages; give --source_language and '
        '--target_language, as codes'
      )
    return source, target


class Found(NamedTuple):
  """Model of another program.

  Attributes:
    config: Configuration of a run with this model.
    tokenizers: Tokenizers of the source and the target side.
    weights: Weights of the model.
    notes: What the user should know of the files, one line each.
  """

  config: ExperimentConfig
  tokenizers: Sides
  weights: Weights
  notes: Sequence[str] = ()


def config_of(
  request: Request,
  languages: tuple[str, str],
  model: ModelConfig,
  decoding: DecodingConfig,
  target_tag: str = '',
) -> ExperimentConfig:
  """Return the configuration of an imported run."""
  folder = request.output.absolute()
  return ExperimentConfig(
    name=request.input.resolve().name,
    data=DataConfig(
      source_language=languages[0],
      target_language=languages[1],
      train=('train.{lang}',),
      valid=(),
      test=(),
      target_tag=target_tag,
      tokenizer=TokenizerConfig(
        joint=False,
        source_model=str(folder / 'source.model'),
        target_model=str(folder / 'target.model'),
      ),
    ),
    model=model,
    decoding=decoding,
  )
