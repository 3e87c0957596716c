"""Run directories with checkpoints of known parameters, without training."""

import json

import grain
import jax
import jax.numpy as jnp
import numpy as np

from fusion_jax.config import (
  ExperimentConfig,
  ModelConfig,
  TokenizerConfig,
  TrainingConfig,
)
from fusion_jax.data.tokenizer import Tokenizer, train
from fusion_jax.files import sealed
from fusion_jax.models.transformer import initial_parameters
from fusion_jax.runs import directory
from fusion_jax.runs.checkpoint import Checkpoints, Progress, TrainState
from fusion_jax.runs.integrity import identity_of
from fusion_jax.runs.loading import make_model

_TEXT = ['the cat sat on the mat', 'a dog in the house', 'cats and dogs'] * 3


class SavedRun:
  """A run whose checkpoint of step s holds `of_step(s)`.

  Attributes:
    workdir: the run directory.
    config: of the run.
    shapes: of its parameters.
    identity: what its checkpoints belong to.
  """

  def __init__(self, workdir, model=None, **training):
    config = ExperimentConfig(
      model=model
      or ModelConfig(
        width=16, filter=32, heads=2, encoder_layers=1, decoder_layers=1
      ),
      training=TrainingConfig(**{'keep_last': 9} | training),
    )
    tokenizer = Tokenizer(
      train(_TEXT, TokenizerConfig(algorithm='bpe', vocabulary_size=30))
    )
    directory.create_run(workdir, config, tokenizer, tokenizer)
    model = make_model(config, tokenizer, tokenizer)
    self.workdir, self.config = workdir, config
    self.shapes = jax.eval_shape(lambda: initial_parameters(model, 0))
    self.identity = identity_of(config, tokenizer, tokenizer)

  def of_step(self, step):
    """Normal random parameters with the step as seed."""
    generator = np.random.default_rng(step)
    return jax.tree.map(
      lambda x: jnp.asarray(generator.normal(size=x.shape), x.dtype),
      self.shapes,
    )

  def state(self, step):
    """The state that is saved at a step, with an optimizer of one number."""
    return TrainState(jnp.int32(step), self.of_step(step), jnp.float32(step))

  def checkpoints(self):
    """The run's checkpoints, opened anew as a resumed training does."""
    return Checkpoints(self.workdir, self.config.training, self.identity)

  def save(self, qualities):
    """Saves a checkpoint for each step; quality None: not validated."""
    checkpoints = self.checkpoints()
    for step, quality in qualities.items():
      progress = Progress(quality, step if quality else 0)
      checkpoints.save(self.state(step), iterator(), progress, quality)
    checkpoints.close()

  def steps(self):
    """Those on disk."""
    return sorted(int(p.name) for p in (self.workdir / 'checkpoints').iterdir())


def iterator():
  """Something whose position can be saved."""
  return iter(grain.MapDataset.range(9).to_iter_dataset())


def meta_path(workdir, step):
  """The file of the item `meta` of a checkpoint."""
  return workdir / 'checkpoints' / str(step) / 'meta' / 'metadata'


def edit_meta(workdir, step, *removed, **changes):
  """Replaces or takes out values of a checkpoint's `meta`, and seals it."""
  path = meta_path(workdir, step)
  meta = json.loads(path.read_text()) | changes
  left_out = 'sha256', *removed
  kept = {name: value for name, value in meta.items() if name not in left_out}
  path.write_text(json.dumps(sealed(kept)))
