"""Checks before a run begins, made on all processes."""

import json
import math

import jax
from jax.sharding import Mesh

from fusion_jax.config import ExperimentConfig, serialization
from fusion_jax.data.prepared import PreparedCorpus
from fusion_jax.errors import InputError, require
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.parallel.distributed import gather
from fusion_jax.parallel.mesh import row_shards
from fusion_jax.runs.loading import make_model
from fusion_jax.training.freeze import check_patterns


def check_same_everywhere(config: ExperimentConfig) -> None:
  """Refuse processes that were started with different configs."""
  own = serialization.flatten(config)
  texts = gather(json.dumps(own, sort_keys=True).encode())
  for process, text in enumerate(texts):
    other = json.loads(text)
    for name, value in json.loads(texts[0]).items():
      if other[name] != value:
        raise InputError(
          f'config.{name}: {value!r} on process 0, {other[name]!r} on process '
          f'{process}; start all processes with the same config'
        )


def check_rows(config: ExperimentConfig, mesh: Mesh) -> None:
  """Refuse batches whose rows cannot be divided over the mesh.

  The batches are the same on every mesh, so that a run may resume on another
  one.
  """
  parts, rows = config.optimizer.accumulation, config.data.batch.row_multiple
  pieces = row_shards(mesh) * parts
  require(
    math.lcm(rows, parts) % pieces == 0,
    'data.batch.row_multiple',
    f'must be a multiple of {pieces}, the {row_shards(mesh)} devices of the '
    f'mesh that rows are cut over times optimizer.accumulation={parts}, '
    f'got {rows}',
  )


def check_attention(config: ExperimentConfig, mesh: Mesh) -> None:
  """Refuse cuDNN's attention where it cannot run."""
  if config.model.attention_implementation != 'cudnn':
    return
  platforms = {device.platform for device in mesh.devices.flat} - {'gpu'}
  require(
    not platforms,
    'model.attention_implementation',
    f"'cudnn' needs NVIDIA GPUs, the devices are {', '.join(platforms)}; "
    "choose 'plain'",
  )
  multiple = config.data.batch.length_multiple
  require(
    multiple % 2 == 0,
    'data.batch.length_multiple',
    "must be even for model.attention_implementation='cudnn', which takes "
    f'lengths that are, got {multiple}; 8 suits it',
  )


def check_freeze(config: ExperimentConfig, corpus: PreparedCorpus) -> None:
  """Refuse wrong patterns before the run directory is made."""
  if config.training.freeze:
    model = make_model(config, corpus.source_tokenizer, corpus.target_tokenizer)
    shapes = jax.eval_shape(lambda: initial_parameters(model, 0))
    check_patterns(shapes, config.training.freeze)
