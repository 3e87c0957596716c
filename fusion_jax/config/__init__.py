"""All options of an experiment, and the checks between its parts.

Every field is described once, in the module of its part: `data`, `model`,
`fusion`, `training`, `decoding`, `parallel`. A file in `configs/` imports them
all from here and builds an `ExperimentConfig`; the run directory keeps it as
`config.json`.
"""

from fusion_jax.bounds import Text
from fusion_jax.config.data import (
  BatchConfig,
  DataConfig,
  Direction,
  FilterConfig,
  SamplingConfig,
  TokenizerConfig,
)
from fusion_jax.config.decoding import DecodingConfig
from fusion_jax.config.fusion import Side, SideConfig
from fusion_jax.config.model import PRESETS, ModelConfig
from fusion_jax.config.section import section
from fusion_jax.config.training import (
  OptimizerConfig,
  ParallelConfig,
  TrainingConfig,
)
from fusion_jax.errors import require

__all__ = (
  'PRESETS',
  'BatchConfig',
  'DataConfig',
  'DecodingConfig',
  'Direction',
  'ExperimentConfig',
  'FilterConfig',
  'ModelConfig',
  'OptimizerConfig',
  'ParallelConfig',
  'SamplingConfig',
  'Side',
  'SideConfig',
  'TokenizerConfig',
  'TrainingConfig',
)


@section('')
class ExperimentConfig:
  """All of an experiment."""

  name: Text = 'experiment'
  """Name of the experiment, for the log."""

  data: DataConfig = DataConfig()
  model: ModelConfig = ModelConfig()
  optimizer: OptimizerConfig = OptimizerConfig()
  training: TrainingConfig = TrainingConfig()
  decoding: DecodingConfig = DecodingConfig()
  parallel: ParallelConfig = ParallelConfig()

  def __post_init__(self):
    tokenizer = self.data.tokenizer
    require(
      tokenizer.joint
      or bool(tokenizer.source_model)
      or not self.model.ties_sides,
      'model.tied_embeddings',
      f"'{self.model.tied_embeddings}' shares one table between the sides "
      'and needs data.tokenizer.joint=True, or a source_model and a '
      'target_model with the same pieces',
    )
    optimizer, steps = self.optimizer, self.training.steps
    require(
      optimizer.schedule != 'cosine' or optimizer.warmup_steps < steps,
      'optimizer.warmup_steps',
      f'must be below training.steps={steps}, where the cosine ends, got '
      f'{optimizer.warmup_steps}',
    )
    if self.model.positions == 'learned':
      longest = max(
        self.data.filter.max_length, self.decoding.max_source_length
      )
      require(
        self.model.max_positions >= longest,
        'model.max_positions',
        f'must be at least {longest}, the longest line of data.filter or '
        f'decoding, got {self.model.max_positions}',
      )
