"""The Transformer of an experiment, and the sizes it is known in."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Annotated, Literal

from fusion_jax.bounds import (
  Bound,
  Depth,
  PositiveFloat,
  Share,
  Size,
  check_fields,
)
from fusion_jax.config.fusion import Side, SideConfig
from fusion_jax.config.fusion_checks import check_side
from fusion_jax.errors import require

_STRICT = types.MappingProxyType({'extra': 'forbid'})


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """The encoder-decoder Transformer of Vaswani et al. (2017)."""

  __pydantic_config__ = _STRICT

  # Model width D (d_model).
  width: Size = 512
  # Width of the hidden layer of the feed-forward sublayer, F.
  filter: Size = 2048
  # Attention heads N; the head width is width / heads.
  heads: Size = 8
  encoder_layers: Depth = 6
  decoder_layers: Depth = 6
  # 'post': LN(x + f(x)), the paper's. 'pre': x + f(LN(x)), and one LN more
  # at the end of each stack. 'rezero': x + a f(x) without any norm, a = 0 at
  # first and one a layer (Bachlechner et al. 2020).
  norm: Literal['post', 'pre', 'rezero'] = 'post'
  norm_epsilon: Annotated[PositiveFloat, Bound('<=', 1)] = 1e-6
  # 'sinusoidal': section 3.5 of the paper. 'learned': a table of
  # max_positions vectors for each side.
  positions: Literal['sinusoidal', 'learned'] = 'sinusoidal'
  max_positions: Size = 1_024
  # Which of the source table, the target table and the output projection
  # are one array: 'none'; 'source_target'; 'target_output'; 'all'.
  tied_embeddings: Literal['none', 'source_target', 'target_output', 'all'] = (
    'all'
  )
  # Biases of the attention projections, of the feed-forward layers and of
  # the output projection.
  attention_bias: bool = True
  feedforward_bias: bool = True
  output_bias: bool = False
  # 'glorot': uniform(+-sqrt(6 / (fan_in + fan_out))), biases 0.
  # 'mlrf': uniform(+-1 / sqrt(fan_in)), biases too (Wang et al. 2018).
  # Embeddings are normal with deviation width^-0.5 in both.
  initialization: Literal['glorot', 'mlrf'] = 'glorot'
  # Dropout on: the output of every sublayer; the attention weights; the
  # hidden layer of the feed-forward sublayer; the sum of embedding and
  # position.
  dropout: Share = 0.1
  attention_dropout: Share = 0.0
  activation_dropout: Share = 0.0
  embedding_dropout: Share = 0.1
  # 'hash': a counter-based integer hash, cheap on every backend.
  # 'threefry': jax.random.bernoulli.
  dropout_generator: Literal['hash', 'threefry'] = 'hash'
  # Dtype of activations and matrix products. Parameters, softmax, norms and
  # loss are float32 in either case.
  compute_dtype: Literal['float32', 'bfloat16'] = 'float32'
  # How the layers of each stack are fused.
  encoder: SideConfig = SideConfig()
  decoder: SideConfig = SideConfig()
  # Compile one layer and run it in a loop: compilation does not grow with
  # depth. Their parameters are then one array over all layers.
  scan_layers: bool = False
  # Compute the insides of each layer again in the backward pass and keep only
  # its inputs, and beside them by remat_policy 'nothing'; 'dots': the results
  # of all matrix products; 'dots_without_batch': of those with weights, not
  # of the attention's. XLA on a CPU saves memory by it only with scan_layers.
  remat: bool = False
  remat_policy: Literal['nothing', 'dots', 'dots_without_batch'] = 'nothing'

  def __post_init__(self):
    check_fields(self, 'model')
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
    for name in ('encoder', 'decoder'):
      check_side(
        self.side(name),
        name,
        layers=self.layers(name),
        width=self.width,
        norm=self.norm,
      )
      self._check_scan(name)

  def _check_scan(self, name: Side) -> None:
    side = self.side(name)
    many = side.multi_layer.layers > 1
    require(
      not (self.scan_layers and (side.owns_layer_inputs or many)),
      'model.scan_layers',
      f'needs layers that are all alike, which model.{name} with '
      + ('multi_layer.layers > 1' if many else f'fusion={side.fusion!r}')
      + ' has not; choose one',
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
  def head_width(self) -> int:
    return self.width // self.heads


# Vaswani et al. (2017), Table 3; 'small' and 'tiny' for CPUs and tests.
PRESETS: Mapping[str, ModelConfig] = types.MappingProxyType(
  {
    'big': ModelConfig(width=1024, filter=4096, heads=16, dropout=0.3),
    'base': ModelConfig(),
    'small': ModelConfig(
      width=256, filter=1024, heads=4, encoder_layers=3, decoder_layers=3
    ),
    'tiny': ModelConfig(
      width=64, filter=128, heads=2, encoder_layers=2, decoder_layers=2
    ),
  }
)
