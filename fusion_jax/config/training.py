"""The optimizer of an experiment and its training loop."""

import dataclasses
import types
from typing import Literal

from fusion_jax.bounds import (
  Beam,
  Natural,
  NotNegative,
  Positive,
  PositiveFloat,
  Seed,
  Share,
  Size,
  check_fields,
)
from fusion_jax.errors import require

_STRICT = types.MappingProxyType({'extra': 'forbid'})


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Adam and its learning-rate schedule."""

  __pydantic_config__ = _STRICT

  # The rate of update t, counted from 1, with W updates of warm-up; all but
  # 'vaswani' grow linearly to `peak`.
  # 'vaswani': scale * D^-0.5 * min(t^-0.5, t * W^-1.5), their Eq. 3.
  # 'inverse_sqrt': then peak * sqrt(W / t).
  # 'cosine': then half a cosine from `peak` to `final` at training.steps.
  # 'constant': then `peak`.
  schedule: Literal['vaswani', 'inverse_sqrt', 'cosine', 'constant'] = 'vaswani'
  scale: PositiveFloat = 1.0
  peak: PositiveFloat = 5e-4
  final: NotNegative = 0.0
  # W; 1 is no warm-up.
  warmup_steps: Positive = 4_000
  # The warm-up lasts until so many target tokens have been seen and grows
  # with them; W is then the updates that it took. 0: by warmup_steps.
  warmup_tokens: Natural = 0
  beta1: Share = 0.9
  beta2: Share = 0.98
  epsilon: PositiveFloat = 1e-9
  # Dtype in which Adam's first moment is kept between the updates, which
  # are computed in float32; the second moment is always float32.
  moments_dtype: Literal['float32', 'bfloat16'] = 'float32'
  # Decoupled decay (AdamW, Loshchilov and Hutter 2019): an update also takes
  # rate * weight_decay * parameter from the weight matrices and embedding
  # tables; norms, biases and the scalars of fusions have none.
  weight_decay: NotNegative = 0.0
  # Factor on the rate of the parameters that only the fusion has: what the same
  # model without fusion lacks. 0: that of the scheme (FUSION_RATES in
  # fusion_jax/config/fusion.py).
  fusion_rate: NotNegative = 0.0
  # Largest global norm of the gradient of the mean loss; 0: no clipping.
  clip_norm: NotNegative = 0.0
  # Parts into which a batch is cut; their gradients are added before the
  # update.
  accumulation: Size = 1

  def __post_init__(self):
    check_fields(self, 'optimizer')
    require(
      self.final <= self.peak,
      'optimizer.final',
      f'must be between 0 and optimizer.peak={self.peak}, got {self.final}',
    )
    require(
      not (self.warmup_tokens and self.schedule == 'vaswani'),
      'optimizer.warmup_tokens',
      "needs a schedule with a peak of its own; that of 'vaswani' follows "
      "from warmup_steps: use 'inverse_sqrt' with optimizer.peak",
    )


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
  """The loop: how long, how often, what is kept."""

  __pydantic_config__ = _STRICT

  # Updates.
  steps: Positive = 100_000
  # A run directory whose parameters a new run starts from; what is new in
  # this model starts fresh, and so do optimizer and schedule.
  init_from: str = ''
  # Parameters that are not trained: patterns of the shell over their names,
  # where * matches / too: 'encoder/*', '*_embedding'. They get no update, no
  # decay and no moments. `python -m fusion_jax.models` lists the names.
  freeze: tuple[str, ...] = ()
  # Decay d of the average of the parameters, a + (1 - d) (p - a) after every
  # update, starting at the parameters; 0: none. Validation and decoding read
  # the average, and the state has one more copy of the parameters.
  ema: Share = 0.0
  # An update whose loss or gradient is not finite is left out; so many in a
  # row end the run at the next progress line or checkpoint.
  max_skipped: Positive = 10
  # Where weight matrices become bfloat16, with compute_dtype='bfloat16': at
  # every use, or in one copy a step that all uses and parts of the batch
  # read. Those of the optimizer, and tables and all else, are float32.
  cast_weights: Literal['at_use', 'once'] = 'at_use'
  # Of the initial parameters, the order of the data and dropout.
  seed: Seed = 0
  label_smoothing: Share = 0.1
  # Weight of the layer-diversity reward (Dou et al. 2018, Eq. 9-10; 1.0
  # there); 0: none. The reward of the two stacks is their sum or mean.
  diversity: NotNegative = 0.0
  diversity_sides: Literal['sum', 'mean'] = 'sum'
  # The reward of a token and a pair of layers: their distance d = 1 - cos^2,
  # the paper's, or log d, which asks for less and less.
  diversity_reward: Literal['distance', 'log_distance'] = 'distance'
  # The weight is 0 before update diversity_start and rises linearly over the
  # next diversity_rise updates.
  diversity_start: Natural = 0
  diversity_rise: Natural = 0
  # Target tokens of one chunk of the output layer and loss; the logits of
  # one chunk are all that is held at a time. 0: the whole batch at once.
  loss_chunk: Natural = 256
  # Steps between progress lines, between validations (loss and BLEU) and
  # between checkpoints. A validation always saves.
  log_every: Positive = 100
  validate_every: Positive = 1_000
  save_every: Positive = 1_000
  # Validation sentences that are translated for BLEU, of each direction; 0:
  # all. Of several directions `metric` is the mean over them.
  translate_sentences: Natural = 0
  # Beam of that translation; the other settings are those of `decoding`.
  translate_beam: Beam = 1
  # Checkpoints kept: the last ones, and the best by `metric`.
  keep_last: Positive = 5
  keep_best: Natural = 1
  metric: Literal['bleu', 'chrf', 'loss'] = 'bleu'
  # Validations without improvement of `metric` before stopping; 0: never.
  patience: Natural = 0

  def __post_init__(self):
    check_fields(self, 'training')
    require(
      all(self.freeze),
      'training.freeze',
      "must have no empty pattern; () freezes nothing, '*' all",
    )
