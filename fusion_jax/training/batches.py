"""The training batches of a run and the log lines about them."""

import logging

from jax.sharding import Mesh

from fusion_jax.config import ExperimentConfig
from fusion_jax.data.mixing import mixture_table, training_mixture
from fusion_jax.data.pipeline import TrainingBatches, training_shapes
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.parallel.mesh import own_rows

logger = logging.getLogger(__name__)


def make_batches(
  config: ExperimentConfig, corpus: PreparedCorpus, mesh: Mesh
) -> TrainingBatches:
  """Choose the batch shapes for the corpus, and log them."""
  split = corpus.split('train')
  mixture = training_mixture(
    config.data, split.directions, split.lengths, config.training.seed
  )
  shapes = training_shapes(
    mixture.lengths,
    config.data.batch,
    config.optimizer.accumulation,
    config.data.filter.max_length,
  )
  batches = TrainingBatches(
    split,
    shapes,
    config.training.seed,
    *own_rows(mesh),
    config.data.sampling.enabled,
    mixture,
    config.data.batch.packing,
  )
  logger.info('%d training shapes:\n%s', len(shapes), batches.table())
  if len(split.directions) > 1:
    logger.info('mixture:\n%s', mixture_table(split.directions, mixture))
  per_epoch = batches.plan.batches_per_epoch
  logger.info(
    '%s pairs, %s batches an epoch; %s steps are %.1f epochs',
    f'{len(split):,}',
    f'{per_epoch:,}',
    f'{config.training.steps:,}',
    config.training.steps / per_epoch,
  )
  return batches
