"""The Transformer of an experiment, and the sizes it is known in."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from fusion_jax.bounds import Depth, Share, Size
from fusion_jax.config.fusion import SIDES, Side, SideConfig, unread_options
from fusion_jax.config.section import section
from fusion_jax.errors import require


def check_side(config: 'ModelConfig', side: Side) -> None:
  """Refuse values and pairs of values that make no sense."""
  chosen, path = config.side(side), f'model.{side}'
  _check_place(chosen, path, side, config.norm)
  _check_unread(chosen, path, side)
  for part in filter(None, (chosen.scheme, chosen.source)):
    part.check(config, side)
  require(
    not (chosen.skip_gains and chosen.owns_residual),
    f'{path}.skip_gains',
    f'True and fusion={chosen.fusion!r} both replace the residual; choose one',
  )
  fused = bool(chosen.scheme or chosen.source or chosen.skip_gains)
  require(
    chosen.start == 'fresh' or fused,
    f'{path}.start',
    "'baseline' is about a fusion, and there is none; choose "
    f"{path}.fusion, or start='fresh'",
  )
  if config.scan_layers:
    _check_scan(chosen, path)


def _check_place(chosen: SideConfig, path: str, side: Side, norm: str) -> None:
  scheme = chosen.scheme
  if scheme is None:
    return
  require(
    side in scheme.modules,
    f'{path}.fusion',
    f'{chosen.fusion!r} does not fit the {side}; it belongs to model.'
    f'{next(iter(scheme.modules))}.fusion',
  )
  require(
    norm in scheme.norms,
    f'{path}.fusion',
    f'{chosen.fusion!r} needs model.norm='
    f'{" or ".join(map(repr, scheme.norms))}, got {norm!r}',
  )


def _check_unread(chosen: SideConfig, path: str, side: Side) -> None:
  for name in unread_options(chosen, side):
    section, option = name.split('.')
    options = getattr(chosen, section)
    value = getattr(options, option)
    require(
      value == getattr(type(options)(), option),
      f'{path}.{name}',
      f'{value!r} has no effect in the {side}; leave it out',
    )


def _check_scan(chosen: SideConfig, path: str) -> None:
  unlike = chosen.source and not chosen.source.layers_alike
  for what, differs in (
    (f'attention={chosen.attention!r}', unlike),
    (f'fusion={chosen.fusion!r}', chosen.owns_layer_inputs),
  ):
    require(
      not differs,
      'model.scan_layers',
      f'needs layers that are all alike, which {path} with {what} has not; '
      'choose one',
    )


TiedEmbeddings: TypeAlias = Literal[
  'none', 'source_target', 'target_output', 'all'
]
Positions: TypeAlias = Literal['sinusoidal', 'marian', 'fairseq', 'learned']


@section('model')
class ModelConfig:
  """The encoder-decoder Transformer of Vaswani et al. (2017)."""

  width: Size = 512
  """Model width D (d_model)."""

  filter: Size = 2048
  """Width of the hidden layer of the feed-forward sublayer, F."""

  heads: Size = 8
  """Attention heads N; the width of a head is width / heads."""

  encoder_layers: Depth = 6
  """Layers of the encoder."""

  decoder_layers: Depth = 6
  """Layers of the decoder."""

  norm: Literal['post', 'pre', 'rezero'] = 'post'
  """Place of the norms. 'post': LN(x + f(x)), the paper's. 'pre': x + f(LN(x)),
  and one more LN at the end of each stack. 'rezero': x + a f(x) without any
  norm, with one a for each layer, which starts at 0 (Bachlechner et al. 2020).
  """

  residual: Literal['plain', 'b2t', 'deepnorm'] = 'plain'
  """What norm='post' adds and how weights start. 'plain': LN(x + f(x)). 'b2t':
  a layer's last sublayer adds the layer's input once more, and its matrices
  start L^-0.5 times as large (Takase et al. 2023). 'deepnorm':
  LN(alpha x + f(x)), and the matrices of feed-forward, values and attention's
  output start beta times as large; alpha and beta depend on the depths (Wang et
  al. 2022)."""

  norm_epsilon: Annotated[float, Field(ge=1e-30, le=1)] = 1e-6
  """What norms add to the variance."""

  activation: Literal['relu', 'silu'] = 'relu'
  """Activation of the feed-forward sublayer. 'relu': the paper's. 'silu':
  x sigmoid(x), also called swish."""

  positions: Positions = 'sinusoidal'
  """'sinusoidal': section 3.5 of the paper, a cosine after each sine. 'marian':
  the same values, all sines before all cosines. 'fairseq': likewise, with the
  wavelengths of fairseq, and counted from 2. 'learned': a table of
  max_positions vectors for each side."""

  max_positions: Size = 1_024
  """Rows of the tables of learned positions."""

  scale_embedding: bool = True
  """Whether embeddings are multiplied by the square root of width before the
  position is added."""

  tied_embeddings: TiedEmbeddings = 'all'
  """Which of the source table, the target table and the output projection are
  one array."""

  attention_bias: bool = True
  """Whether the projections of attention have biases."""

  feedforward_bias: bool = True
  """Whether the feed-forward layers have biases."""

  output_bias: bool = False
  """Whether the output projection has a bias."""

  initialization: Literal['fan_in', 'glorot'] = 'fan_in'
  """'fan_in': uniform(+-1 / sqrt(fan_in)), biases too, the default of PyTorch's
  nn.Linear, with which small models learn better. 'glorot': uniform(+-sqrt(6 /
  (fan_in + fan_out))), biases 0 (Vaswani et al. 2017). Embeddings are normal
  with deviation width^-0.5 in both."""

  dropout: Share = 0.1
  """Dropout on the output of every sublayer."""

  attention_dropout: Share = 0.0
  """Dropout on the attention weights."""

  activation_dropout: Share = 0.0
  """Dropout on the hidden layer of the feed-forward sublayer."""

  embedding_dropout: Share = 0.1
  """Dropout on the sum of embedding and position."""

  dropout_generator: Literal['hash', 'threefry'] = 'hash'
  """'hash': a counter-based integer hash, cheap on every backend. 'threefry':
  jax.random.bernoulli."""

  compute_dtype: Literal['float32', 'bfloat16'] = 'float32'
  """Dtype of activations and matrix products. Parameters, softmax, norms and
  loss are float32 in either case."""

  product_dtype: Literal['float32', 'bfloat16'] = 'float32'
  """Operands of the products of projections and output layer, with
  compute_dtype='float32'. 'bfloat16' rounds them and sums in float32, forwards
  and backwards; CPUs with AVX-512 BF16 or AMX train faster so."""

  encoder: SideConfig = SideConfig()
  """Fusion of the encoder's layers."""

  decoder: SideConfig = SideConfig()
  """Fusion of the decoder's layers."""

  scan_layers: bool = False
  """Compile one layer and run it in a loop, so that compilation does not grow
  with depth. The parameters of the layers are then one array over all layers.
  """

  flatten_positions: bool = True
  """Whether a projection sees the positions of all rows as one matrix. On a CPU
  the gradients of the weights are a quarter faster then; on a TPU the heads of
  every attention are copied, so that False suits it."""

  attention_implementation: Literal['plain', 'xla', 'cudnn'] = 'plain'
  """Attention of training steps; all other passes are plain. 'plain': two
  products and a float32 softmax, with dropout on the weights. 'xla' and
  'cudnn': jax.nn.dot_product_attention by XLA or by cuDNN's flash attention,
  which keeps no weights in memory and needs an NVIDIA GPU from A100 on and
  compute_dtype='bfloat16'. Both need attention_dropout=0."""

  remat: bool = False
  """Compute the insides of each layer again in the backward pass, and keep only
  its inputs and what remat_policy says. XLA on a CPU saves memory by it only
  with scan_layers."""

  remat_policy: Literal['nothing', 'dots', 'dots_without_batch'] = 'nothing'
  """What remat keeps beside the inputs of a layer. 'dots': the results of all
  matrix products; 'dots_without_batch': of those with weights, not of the
  attention's."""

  def __post_init__(self):
    require(
      self.width % self.heads == 0,
      'model.heads',
      f'must divide model.width: {self.width} / {self.heads} leaves a '
      f'remainder of {self.width % self.heads}',
    )
    require(
      self.positions == 'learned' or self.width % 2 == 0,
      'model.width',
      f'must be even for sinusoidal positions, got {self.width}',
    )
    require(
      self.remat or self.remat_policy == 'nothing',
      'model.remat_policy',
      f'{self.remat_policy!r} needs model.remat=True; set it, or leave the '
      'policy out',
    )
    require(
      self.residual == 'plain' or self.norm == 'post',
      'model.residual',
      f"{self.residual!r} needs model.norm='post', got {self.norm!r}",
    )
    gains = self.encoder.skip_gains or self.decoder.skip_gains
    require(
      self.residual == 'plain' or not gains,
      'model.residual',
      f'{self.residual!r} and skip_gains=True both replace the sum; choose one',
    )
    self._check_attention()
    for side in SIDES:
      check_side(self, side)

  def _check_attention(self) -> None:
    chosen = self.attention_implementation
    require(
      chosen == 'plain' or self.attention_dropout == 0,
      'model.attention_implementation',
      f'{chosen!r} has no dropout on the weights; set '
      "model.attention_dropout=0, or choose 'plain'",
    )
    width = self.head_width
    fits = self.compute_dtype == 'bfloat16' and width % 8 == 0 and width <= 128
    require(
      chosen != 'cudnn' or fits,
      'model.attention_implementation',
      "'cudnn' needs model.compute_dtype='bfloat16' and heads whose width is a "
      f'multiple of 8, at most 128; got {self.compute_dtype!r} and {width}',
    )

  def side(self, name: Side) -> SideConfig:
    """The fusion of the encoder or the decoder."""
    return self.encoder if name == 'encoder' else self.decoder

  def layers(self, name: Side) -> int:
    """The layers of the encoder or the decoder."""
    return self.encoder_layers if name == 'encoder' else self.decoder_layers

  @property
  def without_fusion(self) -> 'ModelConfig':
    """The same Transformer with nothing fused."""
    return dataclasses.replace(self, encoder=SideConfig(), decoder=SideConfig())

  @property
  def ties_sides(self) -> bool:
    """Whether source and target have one table of embeddings."""
    return self.tied_embeddings in ('all', 'source_target')

  @property
  def head_width(self) -> int:
    return self.width // self.heads


# Vaswani et al. (2017), Table 3; 'small' and 'tiny' for CPUs and tests.
PRESETS: Mapping[str, ModelConfig] = types.MappingProxyType(
  {
    'big': ModelConfig(
      width=1024, filter=4096, heads=16, dropout=0.3, initialization='glorot'
    ),
    'base': ModelConfig(initialization='glorot'),
    'small': ModelConfig(
      width=256, filter=1024, heads=4, encoder_layers=3, decoder_layers=3
    ),
    'tiny': ModelConfig(
      width=64, filter=128, heads=2, encoder_layers=2, decoder_layers=2
    ),
  }
)
