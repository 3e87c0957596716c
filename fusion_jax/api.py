"""The Python interface: load a run, translate, score, view states, train.

import fusion_jax

model = fusion_jax.load('runs/mine')
model.translate(['A dog runs.'])
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float32

from fusion_jax.config import DecodingConfig, ExperimentConfig
from fusion_jax.config.presets import changed
from fusion_jax.decoding.ensemble import in_direction
from fusion_jax.decoding.score import Scored, Scorer
from fusion_jax.decoding.sentences import PairReader
from fusion_jax.decoding.translate import Translation, Translator
from fusion_jax.decoding.views import InternalsSelection, View, Viewer
from fusion_jax.errors import InputError
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.mesh import data_mesh, put_whole
from fusion_jax.runs.loading import CheckpointSelection, TrainedModel, load_run
from fusion_jax.training import loop


class States(NamedTuple):
  """Outputs of all layers for a pair.

  S and T count the end symbols; L and M are the layers of the stacks and 1.

  Attributes:
    source: Subwords of the source.
    target: Subwords of the translation.
    encoder: H[0..L] of the encoder.
    decoder: H[0..L] of the decoder; position t is the one that predicts
      subword t.
  """

  source: list[str]
  target: list[str]
  encoder: Float32[np.ndarray, 'L S D']
  decoder: Float32[np.ndarray, 'M T D']


class TranslationModel:
  """A trained model that translates, scores and shows its layers.

  Every method takes fields of `DecodingConfig` by name, which replace those of
  the run: `beam_size=8`, or `search='sample', temperature=0.7, seed=1`. A
  translation does not depend on the other lines of a call. A text is one line:
  a line break may end it, but not be in it.
  """

  def __init__(self, run: TrainedModel, workdir: str | Path = ''):
    """Put the parameters of a run on all devices, once for all calls."""
    parameters = put_whole(run.parameters, data_mesh())
    self._run = dataclasses.replace(run, parameters=parameters)
    self._workdir = str(workdir)

  def __repr__(self) -> str:
    model = self.config.model
    return (
      f'TranslationModel({self._workdir!r}, step={self.step}, '
      f'encoder={model.encoder.fusion!r}, decoder={model.decoder.fusion!r})'
    )

  @property
  def config(self) -> ExperimentConfig:
    """Configuration of the run."""
    return self._run.config

  @property
  def step(self) -> int:
    """Training step of the parameters."""
    return self._run.step

  @property
  def transformer(self) -> Transformer:
    """Flax module of the model."""
    return self._run.model

  @property
  def parameters(self) -> Parameters:
    """Parameters of the module."""
    return self._run.parameters

  def translate(
    self, lines: Iterable[str], prefixes: Iterable[str] = (), **options: Any
  ) -> list[str]:
    """Translate lines of text.

    Args:
      lines: Text; an empty line gives an empty one.
      prefixes: Beginning of each translation; empty: all are free.
      **options: Fields of `DecodingConfig`.

    Returns:
      The best translation of each line.

    Raises:
      InputError: A text is not one line, or an option or a prefix is
        impossible.
    """
    return [
      best.text
      for best, *_ in self.translate_n_best(lines, 1, prefixes, **options)
    ]

  def translate_n_best(
    self,
    lines: Iterable[str],
    n_best: int,
    prefixes: Iterable[str] = (),
    **options: Any,
  ) -> list[list[Translation]]:
    """Find the n best translations of lines of text, or draw n samples.

    Args:
      lines: Text; an empty line gives an empty one.
      n_best: Number of translations for each line, at most the beam size.
      prefixes: Beginning of each translation; empty: all are free.
      **options: Fields of `DecodingConfig`.

    Returns:
      For each line its translations with their scores, best first.

    Raises:
      InputError: A text is not one line, or an option or a prefix is
        impossible.
    """
    texts, starts = _listed('lines', lines), _listed('prefixes', prefixes)
    if starts and len(starts) != len(texts):
      raise InputError(f'{len(texts)} lines, but {len(starts)} prefixes')
    translator = Translator(self._run, self._decoding(options), n_best)
    return list(
      translator.translate_n_best(texts, starts or itertools.repeat(''))
    )

  def score(
    self, sources: Iterable[str], translations: Iterable[str], **options: Any
  ) -> list[Scored]:
    """Score given translations as the search scores its own.

    Args:
      sources: Source texts.
      translations: A translation of each.
      **options: Fields of `DecodingConfig`.

    Returns:
      The log-probability of each subword, and the score of each pair.

    Raises:
      InputError: The counts differ, a text is too long or not one line, or an
        option is impossible.
    """
    pairs = _pairs(sources, translations)
    return list(Scorer(self._run, self._decoding(options)).score(pairs))

  def encode(
    self, sources: Iterable[str], translations: Iterable[str], **options: Any
  ) -> list[States]:
    """Compute the outputs H[0..L] of all layers of both stacks.

    Args:
      sources: Source texts.
      translations: A translation of each, which the decoder reads.
      **options: Fields of `DecodingConfig`.

    Returns:
      The states of each pair.

    Raises:
      InputError: The counts differ, a text is too long or not one line, or an
        option is impossible.
    """
    decoding = self._decoding(options)
    reader = PairReader(self._run, decoding)
    items = (
      (None, [reader.encode(f'pair {number}', *pair)])
      for number, pair in enumerate(_pairs(sources, translations), start=1)
    )
    selection = InternalsSelection(attention=False, states=True)
    viewed = Viewer(self._run, decoding, selection).view(items)
    return [self._states(view) for _, (view,) in viewed]

  def _decoding(self, options: dict[str, Any]) -> DecodingConfig:
    return dataclasses.replace(self.config.decoding, **options)

  def _states(self, view: View) -> States:
    internals = view.internals
    assert internals.encoder is not None
    assert internals.decoder is not None
    return States(
      self._run.source_tokenizer.pieces(view.pair.source),
      self._run.target_tokenizer.pieces(view.pair.target),
      np.asarray(internals.encoder),
      np.asarray(internals.decoder),
    )


def load(
  workdir: str | Path,
  *,
  step: int | str = 'best',
  average: int = 1,
  average_of: Literal['last', 'best'] = 'last',
  parameters: Literal['last', 'ema'] | None = None,
  precision: Literal['float32', 'bfloat16', 'int8'] = 'float32',
  source_language: str = '',
  target_language: str = '',
) -> TranslationModel:
  """Load a trained model from its run directory.

  Args:
    workdir: Run directory.
    step: Step number, 'last', or 'best' by the validation metric.
    average: Number of checkpoints whose parameters are averaged.
    average_of: Whether the last of them are averaged or the best.
    parameters: Parameters of each checkpoint: 'last', or 'ema' for their moving
      average; None: the moving average if there is one.
    precision: Precision of the operands of products, where the processor
      multiplies them faster than float32.
    source_language: Language to translate from, for a run of several
      directions.
    target_language: Language to translate to, likewise.

  Returns:
    The model.

  Raises:
    InputError: There is no such run, checkpoint or direction.
  """
  selection = CheckpointSelection(
    step, average, average_of, parameters, precision
  )
  run = load_run(workdir, selection)
  languages = source_language, target_language
  return TranslationModel(in_direction(run, str(workdir), *languages), workdir)


def train(
  config: ExperimentConfig, workdir: str | Path, init_from: str | Path = ''
) -> None:
  """Train an experiment, or resume its training.

  Progress is logged by the logger 'fusion_jax', whose level and handler are up
  to you. In the main thread SIGINT and SIGTERM save a checkpoint and end the
  training.

  Args:
    config: Experiment.
    workdir: Run directory; it is made if it does not exist.
    init_from: Run directory to take the first parameters from.

  Raises:
    InputError: The data are bad, the directory belongs to another run, or the
      loss stays not finite.
  """
  if init_from:
    config = changed(config, {'training.init_from': str(init_from)})
  loop.run(config, Path(workdir))


def _pairs(
  sources: Iterable[str], translations: Iterable[str]
) -> list[tuple[str, str]]:
  first = _listed('sources', sources)
  second = _listed('translations', translations)
  if len(first) != len(second):
    raise InputError(f'{len(first)} sources, but {len(second)} translations')
  return list(zip(first, second, strict=True))


def _listed(name: str, texts: Iterable[str]) -> Sequence[str]:
  if isinstance(texts, str):
    raise InputError(f'{name}: must be a list of texts, got one text')
  return [
    _line(f'{name}: text {number}', text)
    for number, text in enumerate(texts, start=1)
  ]


def _line(where: str, text: Any) -> str:
  """Return a text without the line break that may end it."""
  if not isinstance(text, str):
    raise InputError(f'{where} must be a str, got {text!r}')
  line = text.removesuffix('\n').removesuffix('\r')
  if '\n' in line or '\r' in line:
    raise InputError(f'{where} has a line break; give each line by itself')
  try:
    line.encode()
  except UnicodeEncodeError as error:
    raise InputError(
      f'{where} has half a character, {line[error.start]!r}; it must be Unicode'
    ) from None
  return line
