"""Validation during training: loss, perplexity, accuracy, BLEU and chrF."""

import dataclasses
import json
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.batching import Batch, choose_shapes
from fusion_jax.data.pipeline import evaluation_batches
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.decoding.translate import Translator
from fusion_jax.evaluation.metrics import corpus_scores
from fusion_jax.losses import LossSums, zero_sums
from fusion_jax.models.transformer import Parameters, Transformer
from fusion_jax.parallel.distributed import gather, joined, own_share
from fusion_jax.parallel.mesh import (
  by_rows,
  data_mesh,
  own_rows,
  replicated,
  row_shards,
)
from fusion_jax.training.run_directory import write_atomically
from fusion_jax.training.step import make_eval_step
from fusion_jax.training.telemetry import make_telemetry_step, telemetry_values
from fusion_jax.training.trained import Run

logger = logging.getLogger(__name__)

# The loss of the validation set needs no more shapes than these.
_SHAPES = 3


def token_means(sums: LossSums) -> dict[str, float]:
  """Loss, perplexity and accuracy per target token from sums.

  Args:
    sums: on the host or the device.

  Returns:
    'loss': nats, as it was minimised; 'perplexity': exp of the negative
    log-likelihood; 'accuracy': share of tokens predicted, in [0, 1].
  """
  tokens = max(int(sums.tokens), 1)
  likelihood = float(sums.negative_log_likelihood) / tokens
  return {
    'loss': float(sums.loss) / tokens,
    'perplexity': math.exp(likelihood) if likelihood < 700 else math.inf,
    'accuracy': int(sums.correct) / tokens,
  }


class Validator:
  """Validates a model on the validation split; compiles once."""

  def __init__(
    self,
    config: ExperimentConfig,
    model: Transformer,
    corpus: PreparedCorpus,
    mesh: Mesh,
    workdir: Path,
  ):
    self._mesh = mesh
    self._translations = workdir / 'translations'
    self._language = config.data.target_language
    self._split = corpus.split('valid')
    self._shapes = choose_shapes(
      self._split.lengths,
      dataclasses.replace(config.data.batch, shapes=_SHAPES),
      row_shards(mesh),
      config.data.filter.max_length,
    )
    self._step = make_eval_step(model, config.training.loss_chunk)
    shards = row_shards(mesh)
    self._zero_sums = jax.jit(
      lambda: jax.tree.map(lambda x: jnp.stack([x] * shards), zero_sums()),
      out_shardings=by_rows(mesh),
    )
    self._total = jax.jit(
      lambda sums: jax.tree.map(lambda x: x.sum(0), sums),
      out_shardings=replicated(mesh),
    )
    self._telemetry_step = make_telemetry_step(model)
    wanted = config.training.translate_sentences or None
    self._sources, self._references = (
      texts[:wanted] for texts in self._split.texts()
    )
    self._options = dataclasses.replace(
      config.decoding, beam_size=config.training.translate_beam
    )
    self._run = Run(
      config,
      model,
      None,
      0,
      corpus.source_tokenizer,
      corpus.target_tokenizer,
    )

  def __call__(self, parameters: Parameters, step: int) -> dict[str, float]:
    """Loss without smoothing, perplexity, accuracy, BLEU, chrF.

    Also writes translations/STEP.txt and logs one line.

    Args:
      parameters: to validate, replicated over the mesh.
      step: names the file.

    Returns:
      The named numbers, 'validation_seconds' among them.
    """
    start = time.monotonic()
    values = token_means(self._loss(parameters))
    translations = self._translated(parameters, step)
    scores = corpus_scores(translations, self._references, self._language)
    values |= {'bleu': scores.bleu, 'chrf': scores.chrf}
    values['validation_seconds'] = time.monotonic() - start
    if jax.process_index() == 0:
      self._translations.mkdir(exist_ok=True)
      write_atomically(
        self._translations / f'{step}.txt',
        ''.join(line + '\n' for line in translations).encode(),
      )
    logger.info(
      'validation at step %d: loss %.4f, perplexity %.2f, accuracy %.4f, '
      'BLEU %.2f, chrF %.2f (%s), %.1f s',
      step,
      values['loss'],
      values['perplexity'],
      values['accuracy'],
      scores.bleu,
      scores.chrf,
      scores.bleu_signature,
      values['validation_seconds'],
    )
    return values

  def _translated(self, parameters: Parameters, step: int) -> list[str]:
    """The translations of all sources; each process makes its share."""
    own = jax.tree.map(lambda x: x.addressable_data(0), parameters)
    run = dataclasses.replace(self._run, parameters=own, step=step)
    with jax.set_mesh(data_mesh()):
      translator = Translator(run, self._options)
      lines = list(translator.translate(own_share(self._sources)))
    shares = gather(json.dumps(lines).encode())
    return list(joined([json.loads(share) for share in shares]))

  def telemetry(self, parameters: Parameters) -> dict[str, float]:
    """What the fusions do on the first batch; empty without fusion."""
    return telemetry_values(
      self._telemetry_step(parameters, next(self._batches()))
    )

  def _batches(self) -> Iterator[Batch]:
    sharding = by_rows(self._mesh)
    own = own_rows(self._mesh)
    for batch in evaluation_batches(self._split, self._shapes, *own):
      yield Batch(
        *(
          jax.make_array_from_process_local_data(sharding, part)
          for part in batch
        )
      )

  def _loss(self, parameters: Parameters) -> LossSums:
    sums = self._zero_sums()
    for batch in self._batches():
      sums = self._step(parameters, sums, batch)
    return jax.device_get(self._total(sums))
