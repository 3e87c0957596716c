"""The optimizer of an experiment, its training loop, and its devices."""

import math
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fusion_jax.bounds import (
  Beam,
  Natural,
  NotNegative,
  Positive,
  PositiveFloat,
  Seed,
  Share,
  Size,
  Text,
  Texts,
)
from fusion_jax.config.section import section
from fusion_jax.errors import require


@section('optimizer')
class OptimizerConfig:
  """Adam and its learning-rate schedule."""

  schedule: Literal['vaswani', 'inverse_sqrt', 'cosine', 'constant'] = 'vaswani'
  """Rate of update t, counted from 1, with W updates of warm-up. 'vaswani':
  scale * D^-0.5 * min(t^-0.5, t * W^-1.5), their Eq. 3. The others grow
  linearly to `peak`; then 'inverse_sqrt': peak * sqrt(W / t); 'cosine': half a
  cosine from `peak` to `final` at training.steps; 'constant': `peak`."""

  scale: PositiveFloat = 1.0
  """Factor of schedule='vaswani'."""

  peak: PositiveFloat = 5e-4
  """Rate at the end of the warm-up."""

  final: NotNegative = 0.0
  """Rate at the end of schedule='cosine'."""

  warmup_steps: Positive = 4_000
  """W, updates of warm-up; 1: no warm-up."""

  beta1: Share = 0.9
  """Adam's decay of the first moment."""

  beta2: Share = 0.98
  """Adam's decay of the second moment."""

  epsilon: PositiveFloat = 1e-9
  """What Adam adds to the root of the second moment."""

  moments_dtype: Literal['float32', 'bfloat16'] = 'float32'
  """Dtype in which Adam's first moment is kept. Updates are computed in
  float32, and the second moment is always float32."""

  weight_decay: NotNegative = 0.0
  """Decoupled decay (AdamW, Loshchilov and Hutter 2019): an update also takes
  rate * weight_decay * parameter from the weight matrices and embedding tables;
  norms, biases and the scalars of fusions have none."""

  fusion_rate: NotNegative = 0.0
  """Factor on the rate of the parameters that only the fusion has: what the
  same model without fusion lacks. 0: that of the scheme, in its row."""

  clip_norm: NotNegative = 0.0
  """Largest global norm of the gradient of the mean loss; 0: no clipping."""

  accumulation: Size = 1
  """Parts into which a batch is cut; their gradients are added before the
  update."""

  def __post_init__(self):
    require(
      self.final <= self.peak,
      'optimizer.final',
      f'must be between 0 and optimizer.peak={self.peak}, got {self.final}',
    )


@section('training')
class TrainingConfig:
  """The loop: how long, how often, what is kept."""

  steps: Positive = 100_000
  """Updates."""

  init_from: Text = ''
  """A run directory whose parameters a new run starts from. What is new in this
  model starts fresh, and so do optimizer and schedule."""

  freeze: Texts = ()
  """Parameters that are not trained: patterns of the shell over their names,
  where * matches / too: 'encoder/*', '*_embedding'. They get no update, no
  decay and no moments. `fusion-jax sizes` lists the names."""

  ema: Share = 0.0
  """Decay d of the average of the parameters, a + (1 - d) (p - a) after every
  update, starting at the parameters; 0: none. Validation and decoding read the
  average, and the state has one more copy of the parameters."""

  max_skipped: Positive = 10
  """Updates in a row that may be left out, because their loss or gradient is
  not finite; this number of them ends the run at the next progress line or
  checkpoint."""

  seed: Seed = 0
  """Decides the initial parameters, the order of the data and dropout."""

  label_smoothing: Share = 0.1
  """Probability that the smoothed targets give to all tokens alike."""

  diversity: NotNegative = 0.0
  """Weight of the layer-diversity reward (Dou et al. 2018, Eq. 9-10; 1.0
  there); 0: none."""

  loss_chunk: Natural = 256
  """Target tokens of one chunk of the output layer and loss; the logits of one
  chunk are all that is held at a time. 0: the whole batch at once."""

  log_every: Positive = 100
  """Updates between progress lines; the last update has one too."""

  wandb: Text = ''
  """A project on Weights & Biases that gets the numbers of the log too; '':
  none. Needs the package wandb; WANDB_MODE=offline sends nothing."""

  validate_every: Positive = 1_000
  """Updates between validations (loss and BLEU). A validation always saves."""

  save_every: Positive = 1_000
  """Updates between checkpoints."""

  translate_sentences: Natural = 0
  """Validation sentences that are translated for BLEU, of each direction; 0:
  all. Of several directions `metric` is the mean over them."""

  translate_beam: Beam = 1
  """Beam of that translation; the other settings are those of `decoding`."""

  keep_last: Positive = 5
  """The last checkpoints that are kept."""

  keep_best: Natural = 1
  """The best checkpoints by `metric` that are kept too."""

  metric: Literal['bleu', 'chrf', 'loss'] = 'bleu'
  """Metric by which the best validation is chosen."""

  patience: Natural = 0
  """Validations without improvement of `metric` before stopping; 0: never."""

  def __post_init__(self):
    require(
      all(self.freeze),
      'training.freeze',
      "must have no empty pattern; () freezes nothing, '*' all",
    )


MeshAxis = Literal['', 'fsdp', 'tensor']
_Devices: TypeAlias = Annotated[int, Field(ge=-1, le=2**20)]


@section('parallel.rules')
class AxisRules:
  """The axis of the mesh that each logical axis of a parameter is sharded over.

  Empty: it stays whole, as all other axes do. An axis of the mesh shards one
  axis of a parameter at most, the first that names it; a size that it does not
  divide stays whole.
  """

  vocab: MeshAxis = 'tensor'
  """Pieces of a vocabulary."""

  embed: MeshAxis = 'fsdp'
  """The model width D, and concatenations of it."""

  heads: MeshAxis = 'tensor'
  """Heads times head width."""

  mlp: MeshAxis = 'tensor'
  """The hidden axis of feed-forward layers and of what fuses layers."""


@section('parallel')
class ParallelConfig:
  """The mesh: its three axes multiply to the number of devices.

  The rows of a batch are sharded over data and fsdp; parameters and optimizer
  state over fsdp (and gathered for a step) and over tensor (which also shards
  the products). -1 is what the other axes leave.
  """

  data: _Devices = -1
  """Devices along the axis data."""

  fsdp: _Devices = 1
  """Devices along the axis fsdp."""

  tensor: _Devices = 1
  """Devices along the axis tensor."""

  rules: AxisRules = AxisRules()
  """How the axes of parameters are sharded."""

  lost_after: Natural = 60
  """Seconds without a heartbeat of one process after which the others end; 0:
  they wait."""

  stalled_after: Natural = 3_600
  """Seconds in which no process begins a step, validations included, after
  which all end; 0: they wait."""

  def __post_init__(self):
    for field, size in self._sizes().items():
      require(
        size >= 1 or size == -1,
        f'parallel.{field}',
        f'must be at least 1, or -1 for the rest, got {size}',
      )
    rest = [field for field, size in self._sizes().items() if size == -1]
    require(
      len(rest) <= 1,
      f'parallel.{rest[-1] if rest else "data"}',
      f'only one axis can be -1, the rest; {" and ".join(rest)} are',
    )

  def _sizes(self) -> dict[str, int]:
    return {'data': self.data, 'fsdp': self.fsdp, 'tensor': self.tensor}

  def shape(self, devices: int) -> tuple[int, int, int]:
    """Return the sizes of the axes data, fsdp and tensor."""
    sizes = self._sizes()
    given = math.prod(size for size in sizes.values() if size != -1)
    rest = devices // given
    data, fsdp, tensor = (
      rest if size == -1 else size for size in sizes.values()
    )
    listed = ' x '.join(f'{field}={size}' for field, size in sizes.items())
    require(
      data * fsdp * tensor == devices,
      'parallel',
      f'{listed} does not multiply to the {devices} devices there are',
    )
    return data, fsdp, tensor
